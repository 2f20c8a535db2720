//! What was stored comes back exactly.

use idem_core::{
    Body, Fingerprint, Headers, Operation, Origin, OwnerToken, Profile, Response, Scheme, Span,
    Transition,
};

use crate::bench::Bench;
use crate::failure::{CaseResult, Stop};
use crate::moves::{complete, renew};
use crate::stage::Stage;

/// Stores each of these answers, as an answer and as a failure, and reads it back.
async fn come_back(bench: &Bench, responses: Vec<(&'static str, Response)>) -> CaseResult {
    for (name, response) in responses {
        for change in [
            Transition::Complete(response.clone()),
            Transition::FailFinal(response),
        ] {
            let (wish, _, mut track) = Stage::Live.reach(bench).await?;
            let owner = track.owner()?;
            let stored = async {
                track.apply(owner, &change).await?;
                track.claim(&wish.claim()?).await?;
                Ok(())
            };
            stored
                .await
                .map_err(|failure: crate::failure::Failure| Stop::from(failure.within(name)))?;
        }
    }
    Ok(())
}

fn every_byte() -> Vec<u8> {
    (0..=u8::MAX).collect()
}

pub(crate) async fn bytes_of_bodies(bench: &mut Bench) -> CaseResult {
    let body = |bytes: &[u8]| Response::new(200).body(bytes.to_vec());
    come_back(
        bench,
        vec![
            ("an empty body", Response::new(204)),
            ("an omitted body", Response::new(200).without_body()),
            ("every byte", body(&every_byte())),
            ("a single NUL", body(&[0])),
            ("trailing NULs", body(b"a\0\0")),
            ("not UTF-8", body(&[0xff, 0xfe, 0xc3, 0x28, 0xed, 0xa0, 0x80])),
            ("a byte order mark", body(b"\xef\xbb\xbf{}")),
            (
                "JSON in its own spelling",
                body(b" { \"b\" : 1.0, \"a\" : 10e-1, \"a\" : 9007199254740993, \"c\":\"\\u0041\" }\r\n"),
            ),
            ("false", body(b"false")),
            ("null", body(b"null")),
            ("a space", body(b" ")),
            ("line ends", body(b"\r\n\n\r")),
            ("what looks like hex", body(b"\\x4142")),
        ],
    )
    .await
}

pub(crate) async fn bytes_of_a_large_body(bench: &mut Bench) -> CaseResult {
    let large = every_byte().repeat(4096);
    let odd = [b"x".as_slice(), &large].concat();
    come_back(
        bench,
        vec![
            ("1 MiB", Response::new(200).body(large)),
            ("1 MiB and one byte", Response::new(200).body(odd)),
        ],
    )
    .await
}

pub(crate) async fn bytes_of_headers(bench: &mut Bench) -> CaseResult {
    let every: Vec<u8> = every_byte();
    let with = |lines: &[(&str, &[u8])]| {
        let headers: Headers = lines
            .iter()
            .map(|(name, value)| (name.as_bytes().to_vec(), value.to_vec()))
            .collect();
        Response::from_parts(200, headers, Body::Bytes(bytes::Bytes::new()))
    };
    come_back(
        bench,
        vec![
            ("no headers", with(&[])),
            (
                "repeated lines in order",
                with(&[
                    ("set-cookie", b"b=2; Path=/"),
                    ("x-between", b"1"),
                    ("set-cookie", b"a=1, b=2"),
                    ("set-cookie", b"b=2; Path=/"),
                ]),
            ),
            (
                "names that differ in case",
                with(&[("X-Trace", b"1"), ("x-trace", b"2"), ("X-TRACE", b"1")]),
            ),
            (
                "names in no order",
                with(&[("z", b"1"), ("a", b"2"), ("m", b"3"), ("a", b"1")]),
            ),
            (
                "values with and without spaces",
                with(&[("a", b""), ("a", b" "), ("a", b" x "), ("a", b"x\t")]),
            ),
            (
                "values that are not UTF-8",
                with(&[("a", b"caf\xe9"), ("b", &[0xff, 0xfe]), ("c", &every)]),
            ),
            ("an empty name", with(&[("", b"x"), ("a", b"")])),
            (
                "a value of one separator",
                with(&[("a", b","), ("b", b": "), ("c", b"\r\n")]),
            ),
        ],
    )
    .await
}

pub(crate) async fn bytes_of_many_headers(bench: &mut Bench) -> CaseResult {
    let headers: Headers = (0..200)
        .map(|number| {
            let name = format!("x-{}", number % 50);
            (name, format!("value {number} {}", "v".repeat(number)))
        })
        .collect();
    let long: Headers = [("x-long", "v".repeat(100_000))].into_iter().collect();
    let body = |headers| Response::from_parts(200, headers, Body::Bytes(b"{}".as_slice().into()));
    come_back(
        bench,
        vec![
            ("200 lines", body(headers)),
            ("a line of 100000 bytes", body(long)),
        ],
    )
    .await
}

pub(crate) async fn bytes_of_codes(bench: &mut Bench) -> CaseResult {
    let codes = [
        100,
        200,
        204,
        304,
        402,
        410,
        500,
        599,
        999,
        0,
        1,
        32768,
        u16::MAX,
    ];
    let responses = codes.map(|code| ("a code", Response::new(code)));
    come_back(bench, responses.into()).await
}

/// Everything that a claim writes, at the ends of its range.
pub(crate) async fn bytes_of_claims(bench: &mut Bench) -> CaseResult {
    let longest = "\u{1f980}".repeat(Operation::MAX_BYTES / 4);
    let operations = [
        " ",
        "post /V1/charges",
        "POST /v1/charges ",
        "caf\u{e9}",
        "cafe\u{301}",
        "'\"\\%_\n\t",
        &longest,
    ];
    for operation in operations {
        written(bench, bench.wish().operation(operation)).await?;
    }
    let rising: [u8; 32] = std::array::from_fn(|index| u8::try_from(index * 8).unwrap_or(0));
    for (encoding, profile) in [(0, 0), (1, u16::MAX), (u16::MAX, 1), (256, 32768)] {
        for digest in [[0; 32], [0xff; 32], [0x80; 32], rising] {
            let scheme = Scheme::new(encoding, Profile::new(profile));
            let fingerprint = Fingerprint::from_parts(scheme, digest);
            written(bench, bench.wish().fingerprint(fingerprint)).await?;
        }
    }
    for span in [Span::ZERO, Span::from_millis(1), Span::MAX] {
        for reclaims in [0, 1, i32::MAX.unsigned_abs(), u32::MAX] {
            let wish = bench.wish().lease(span).retention(span).window(span);
            written(bench, wish.max_reclaims(reclaims)).await?;
        }
    }
    let odd = Span::from_micros(1_234_567).unwrap_or(Span::ZERO);
    written(
        bench,
        bench.wish().lease(odd).retention(odd).window(odd).hold(),
    )
    .await
}

async fn written(bench: &Bench, wish: crate::wish::Wish) -> CaseResult {
    let claim = wish.claim()?;
    let mut track = bench.track(claim.id());
    track.claim(&claim).await?;
    let owner = track.owner()?;
    track.apply(owner, &renew()).await?;
    track.apply(owner, &complete(1)).await?;
    Ok(())
}

/// Origins and tokens are bits, not texts and not numbers.
pub(crate) async fn bytes_of_tokens(bench: &mut Bench) -> CaseResult {
    let mut patterns = vec![
        [0; 16],
        [0xff; 16],
        [0x80; 16],
        *b"                ",
        *b"AAAAaaaa\\x00'\"%\0",
    ];
    for bit in [0, 7, 15] {
        let mut pattern = [0; 16];
        pattern[bit] = 1;
        patterns.push(pattern);
    }
    for (index, pattern) in patterns.iter().enumerate() {
        let wish = bench.wish().lapsed();
        let claim = wish.claim_as(
            Origin::from_bytes(*pattern),
            OwnerToken::from_bytes(*pattern),
        )?;
        let mut track = bench.track(claim.id());
        track.claim(&claim).await?;
        bench.lapse(track.skew()).await?;
        // Every other pattern is somebody else.
        for other in &patterns {
            if other != pattern {
                let late = idem_core::Expect::Owner(OwnerToken::from_bytes(*other));
                track.refuse(late, &renew()).await?;
            }
        }
        let next = OwnerToken::from_bytes(patterns[(index + 1) % patterns.len()]);
        let change = crate::moves::take_over_as(next, Span::MAX);
        track.apply(track.unchanged()?, &change).await?;
        let owner = track.owner()?;
        track.apply(owner, &complete(1)).await?;
    }
    Ok(())
}

/// Numbers that outgrow small columns.
pub(crate) async fn bytes_of_counters(bench: &mut Bench) -> CaseResult {
    let (_, _, track) = Stage::Live.reach(bench).await?;
    let owner = track.owner()?;
    for _ in 0..300 {
        let change = renew();
        bench.store().apply(track.id(), owner, &change).await?;
    }
    let held = bench.store().held(track.id()).await?;
    crate::failure::ensure!(
        held.record.revision.as_u64() == 301,
        "after a claim and 300 renewals the revision must be 301, and is {}",
        held.record.revision
    );
    let (_, _, mut sequences) = Stage::Live.reach(bench).await?;
    let owner = sequences.owner()?;
    for sequence in [
        1,
        255,
        256,
        32_768,
        65_536,
        i32::MAX.unsigned_abs(),
        1 << 31,
        u32::MAX,
    ] {
        sequences
            .apply(owner, &crate::moves::checkpoint(sequence)?)
            .await?;
    }
    Ok(())
}
