use sha2::{Digest as _, Sha256};

/// Feeds SHA-256 in large pieces.
///
/// The parts are mostly a few bytes each, and an update costs more than copying them here does.
#[derive(Debug)]
pub(super) struct Encoder {
    hash: Sha256,
    buffer: [u8; Self::CAPACITY],
    filled: usize,
}

impl Encoder {
    const CAPACITY: usize = 1024;

    pub(super) fn new() -> Self {
        Self {
            hash: Sha256::new(),
            buffer: [0; Self::CAPACITY],
            filled: 0,
        }
    }

    /// Bytes whose length the reader of the encoding knows.
    #[inline]
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        if let Some(room) = self.buffer.get_mut(self.filled..self.filled + bytes.len()) {
            room.copy_from_slice(bytes);
            self.filled += bytes.len();
        } else {
            self.spill(bytes);
        }
    }

    #[inline]
    pub(super) fn byte(&mut self, byte: u8) {
        self.raw(&[byte]);
    }

    /// A length or a count, as an unsigned LEB128.
    #[inline]
    pub(super) fn count(&mut self, count: usize) {
        let mut rest = count as u64;
        while rest >= 0x80 {
            self.byte(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.byte(rest as u8);
    }

    /// Bytes of any length, with the length before them.
    #[inline]
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.raw(bytes);
    }

    pub(super) fn finish(mut self) -> [u8; 32] {
        self.hash.update(&self.buffer[..self.filled]);
        self.hash.finalize().into()
    }

    #[cold]
    fn spill(&mut self, bytes: &[u8]) {
        self.hash.update(&self.buffer[..self.filled]);
        self.filled = 0;
        if bytes.len() < Self::CAPACITY {
            self.buffer[..bytes.len()].copy_from_slice(bytes);
            self.filled = bytes.len();
        } else {
            self.hash.update(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_size_hash_like_the_whole() {
        let all: Vec<u8> = (0..10_000_u32).map(|n| (n * 31 % 251) as u8).collect();
        for size in [1, 2, 63, 64, 1000, 1023, 1024, 1025, 4000] {
            let mut encoder = Encoder::new();
            all.chunks(size).for_each(|piece| encoder.raw(piece));
            let whole: [u8; 32] = Sha256::digest(&all).into();
            assert_eq!(encoder.finish(), whole, "in pieces of {size}");
        }
    }

    #[test]
    fn counts_are_leb128() {
        for (count, bytes) in [
            (0, &[0_u8][..]),
            (127, &[127]),
            (128, &[128, 1]),
            (300, &[0xac, 2]),
            (16_384, &[128, 128, 1]),
        ] {
            let mut encoder = Encoder::new();
            encoder.count(count);
            assert_eq!(&encoder.buffer[..encoder.filled], bytes, "{count}");
        }
    }
}
