use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use sqlx::postgres::PgConnectOptions;

/// A link to a server on which the round trips are counted: the messages after which a client has to wait for an answer.
pub(crate) struct Tap {
    address: SocketAddr,
    turns: Arc<AtomicU64>,
}

impl Tap {
    pub(crate) fn new(to: &PgConnectOptions) -> Self {
        let server = (to.get_host().to_owned(), to.get_port());
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let turns = Arc::new(AtomicU64::new(0));
        let counted = turns.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&server) else {
                    continue;
                };
                // What waits for more to be sent with it would be counted late.
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let counted = counted.clone();
                thread::spawn(move || {
                    let _ = requests(&from, &to, &counted);
                    let _ = to.shutdown(Shutdown::Both);
                });
                thread::spawn(move || {
                    let _ = io::copy(&mut &server, &mut &client);
                    let _ = client.shutdown(Shutdown::Both);
                });
            }
        });
        Self { address, turns }
    }

    /// These options, through this link.
    pub(crate) fn through(&self, options: PgConnectOptions) -> PgConnectOptions {
        options.host("127.0.0.1").port(self.address.port())
    }

    /// How many round trips there were.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }
}

/// Hands on what a client sends, message by message.
fn requests(mut from: &TcpStream, mut to: &TcpStream, turns: &AtomicU64) -> io::Result<()> {
    // The first message has no letter.
    let first = body(from)?;
    to.write_all(&first)?;
    loop {
        let mut letter = [0];
        from.read_exact(&mut letter)?;
        let mut message = letter.to_vec();
        message.extend(body(from)?);
        // A query, a statement that is prepared, or a prepared one that is executed. A pool also asks whether a connection
        // lives when it gets it back, which nobody waits for.
        if matches!(letter[0], b'Q' | b'P' | b'E') {
            turns.fetch_add(1, Ordering::SeqCst);
        }
        to.write_all(&message)?;
    }
}

/// The rest of a message, its length first.
fn body(mut from: &TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let rest = u32::from_be_bytes(length).saturating_sub(4);
    let mut message = length.to_vec();
    message.resize(4 + rest as usize, 0);
    from.read_exact(&mut message[4..])?;
    Ok(message)
}
