use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::iter;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::ports;

/// How many bytes travel at once.
const CHUNK: usize = 16 * 1024;

/// How many free ports are tried, each of which another process may take in the meantime.
const PORTS_TRIED: usize = 10;

/// What every byte of an answer becomes under [`Fault::Garbage`]. No protocol that is tested begins with it.
const GARBAGE: u8 = 0xFE;

/// What is wrong with the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing.
    Pass,
    /// Every connection is cut, and new ones are refused by the kernel.
    Refuse,
    /// Connections are accepted and everything sent over them vanishes. They are cut when the fault ends, since bytes
    /// are missing from them.
    BlackHole,
    /// Each chunk arrives that much later. A chunk that is under way when the fault ends arrives then.
    Delay(Duration),
    /// A connection passes that many bytes more, and is cut then. A new connection has as many.
    CutAfter(usize),
    /// Every byte arrives as another one. Connections that carried any are cut when the fault ends.
    Garbage,
    /// Nothing moves and nothing is closed, as when a cable is out. What was sent meanwhile arrives when the fault ends.
    HalfOpen,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Answers,
}

/// A proxy between clients and a server at a TCP address, whose faults are switched at any time.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use idem_test_servers::{Direction, Fault, FaultProxy};
/// use std::net::{TcpListener, TcpStream};
///
/// let server = TcpListener::bind("127.0.0.1:0")?;
/// let proxy = FaultProxy::start(server.local_addr()?)?;
/// proxy.set(Fault::Refuse)?;
/// assert!(TcpStream::connect(proxy.address()).is_err());
/// proxy.set(Fault::Pass)?;
/// assert!(TcpStream::connect(proxy.address()).is_ok());
/// proxy.set_one_way(Direction::Answers, Fault::BlackHole)?; // requests are carried out, and answers are lost
/// # Ok(())
/// # }
/// ```
///
/// Dropping it cuts every connection.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Mutex<Option<Acceptor>>,
}

impl FaultProxy {
    /// Starts a proxy to `server` on a free port of 127.0.0.1. It need not listen yet: a connection that cannot be
    /// passed on is closed.
    ///
    /// # Errors
    ///
    /// When no port can be had.
    pub fn start(server: SocketAddr) -> io::Result<Self> {
        // Of the same range as the servers': the port must be free again after a refusal.
        let listener = iter::from_fn(ports::free_port)
            .take(PORTS_TRIED)
            .find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok())
            .ok_or_else(|| io::Error::other("no port is free"))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            server,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let acceptor = Mutex::new(Some(Acceptor::start(listener, &shared)?));
        Ok(Self {
            address,
            shared,
            acceptor,
        })
    }

    /// Where clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections were accepted since the start.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.state().accepted
    }

    /// How many connections are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.shared.state().connections.len()
    }

    /// How many bytes were handed on that way.
    #[must_use]
    pub fn passed(&self, direction: Direction) -> u64 {
        self.shared.state().way(direction).passed
    }

    /// Makes it the fault of both ways, for connections that are open and for new ones.
    ///
    /// # Errors
    ///
    /// When its port has been taken by somebody else while it refused connections.
    pub fn set(&self, fault: Fault) -> io::Result<()> {
        self.change(&[Direction::Requests, Direction::Answers], fault)
    }

    /// Makes it the fault of one way and leaves the other as it is. Refusal has no way, and is taken as that of both.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    pub fn set_one_way(&self, direction: Direction, fault: Fault) -> io::Result<()> {
        self.change(&[direction], fault)
    }

    /// Cuts every open connection.
    pub fn cut(&self) {
        self.shared.state().cut(|_| true);
        self.shared.changed.notify_all();
    }

    fn change(&self, directions: &[Direction], fault: Fault) -> io::Result<()> {
        let mut acceptor = self.acceptor.lock().unwrap_or_else(PoisonError::into_inner);
        let refuses = {
            let mut state = self.shared.state();
            for direction in directions {
                let way = state.way(*direction);
                way.fault = fault;
                way.epoch += 1;
            }
            state.cut(|connection| connection.spoilt);
            state.requests.fault == Fault::Refuse || state.answers.fault == Fault::Refuse
        };
        self.shared.changed.notify_all();
        if refuses {
            // The listener first, or a client that reconnects at once would still be let in.
            if let Some(acceptor) = acceptor.take() {
                acceptor.stop(self.address);
            }
            self.cut();
        } else if acceptor.is_none() {
            *acceptor = Some(Acceptor::start(
                TcpListener::bind(self.address)?,
                &self.shared,
            )?);
        }
        Ok(())
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        let acceptor = self
            .acceptor
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        self.shared.state().ended = true;
        self.shared.changed.notify_all();
        if let Some(acceptor) = acceptor {
            acceptor.stop(self.address);
        }
        self.cut();
    }
}

/// The thread that accepts connections. It holds the listener, which is closed when it ends.
#[derive(Debug)]
struct Acceptor {
    thread: JoinHandle<()>,
    stopping: Arc<Mutex<bool>>,
}

impl Acceptor {
    fn start(listener: TcpListener, shared: &Arc<Shared>) -> io::Result<Self> {
        let shared = Arc::clone(shared);
        let stopping = Arc::new(Mutex::new(false));
        let stop = Arc::clone(&stopping);
        let thread = thread::Builder::new()
            .name("fault-proxy".to_owned())
            .spawn(move || {
                for client in listener.incoming() {
                    if *stop.lock().unwrap_or_else(PoisonError::into_inner) {
                        return;
                    }
                    if let Ok(client) = client {
                        Shared::connect(&shared, client);
                    }
                }
            })?;
        Ok(Self { thread, stopping })
    }

    fn stop(self, address: SocketAddr) {
        *self.stopping.lock().unwrap_or_else(PoisonError::into_inner) = true;
        // Wakes the thread, which waits for a connection.
        let woken = TcpStream::connect(address);
        let _ = self.thread.join();
        drop(woken);
    }
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    state: Mutex<State>,
    /// A fault was set or a connection was cut.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    requests: Way,
    answers: Way,
    connections: BTreeMap<u64, Connection>,
    accepted: u64,
    ended: bool,
}

#[derive(Debug)]
struct Way {
    fault: Fault,
    /// Counts the changes.
    epoch: u64,
    passed: u64,
}

impl Default for Way {
    fn default() -> Self {
        Self {
            fault: Fault::Pass,
            epoch: 0,
            passed: 0,
        }
    }
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    /// `None` until it is connected.
    server: Option<TcpStream>,
    /// Bytes were lost or changed, so that nothing that follows would make sense.
    spoilt: bool,
}

/// What is to be done with a chunk.
enum Verdict {
    Forward(Vec<u8>),
    Swallow,
    /// Forward the rest and cut.
    Cut(Vec<u8>),
    Gone,
}

impl State {
    fn way(&mut self, direction: Direction) -> &mut Way {
        match direction {
            Direction::Requests => &mut self.requests,
            Direction::Answers => &mut self.answers,
        }
    }

    fn spoil(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.spoilt = true;
        }
    }

    fn cut(&mut self, which: impl Fn(&Connection) -> bool) {
        self.connections.retain(|_, connection| {
            if which(connection) {
                connection.close();
                return false;
            }
            true
        });
    }
}

impl Connection {
    fn close(&self) {
        // The other side may have closed it already.
        let _ = self.client.shutdown(Shutdown::Both);
        if let Some(server) = &self.server {
            let _ = server.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to pass on what a new client sends. An error closes its connection.
    fn connect(shared: &Arc<Self>, client: TcpStream) {
        let id = {
            let mut state = shared.state();
            let Ok(kept) = client.try_clone() else { return };
            state.accepted += 1;
            let id = state.accepted;
            state.connections.insert(
                id,
                Connection {
                    client: kept,
                    server: None,
                    spoilt: false,
                },
            );
            id
        };
        let shared = Arc::clone(shared);
        let _ = thread::Builder::new()
            .name(format!("fault-proxy-{id}"))
            .spawn(move || {
                let _ = shared.carry(id, client);
                shared.close(id);
            });
    }

    /// Passes bytes both ways until either side closes the connection.
    fn carry(self: &Arc<Self>, id: u64, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(self.server)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        {
            let mut state = self.state();
            let Some(connection) = state.connections.get_mut(&id) else {
                return Ok(());
            };
            connection.server = Some(server.try_clone()?);
        }
        let answers = {
            let (shared, from, to) = (Arc::clone(self), server.try_clone()?, client.try_clone()?);
            thread::Builder::new()
                .name(format!("fault-proxy-{id}-answers"))
                .spawn(move || {
                    shared.pump(id, Direction::Answers, from, to);
                })?
        };
        self.pump(id, Direction::Requests, client, server);
        let _ = answers.join();
        Ok(())
    }

    fn pump(&self, id: u64, direction: Direction, mut from: TcpStream, mut to: TcpStream) {
        let mut chunk = vec![0; CHUNK];
        let mut counted = Counted { epoch: 0, bytes: 0 };
        loop {
            let verdict = match from.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // A connection that was cut reads as closed, too.
                Ok(0) | Err(_) => return self.end_of_input(id, direction, &to),
                Ok(length) => self.judge(id, direction, &chunk[..length], &mut counted),
            };
            let (bytes, cut) = match verdict {
                Verdict::Forward(bytes) => (bytes, false),
                Verdict::Cut(bytes) => (bytes, true),
                Verdict::Swallow => continue,
                Verdict::Gone => return,
            };
            // Before they go, so that nobody has read what was not yet counted.
            self.state().way(direction).passed += bytes.len() as u64;
            if to.write_all(&bytes).is_err() || cut {
                return self.close(id);
            }
        }
    }

    /// One side sends no more. The other is told, unless the fault keeps that from it.
    fn end_of_input(&self, id: u64, direction: Direction, to: &TcpStream) {
        let mut state = self.state();
        while !state.ended
            && state.connections.contains_key(&id)
            && matches!(
                state.way(direction).fault,
                Fault::BlackHole | Fault::HalfOpen
            )
        {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let _ = to.shutdown(Shutdown::Write);
    }

    /// Decides on a chunk by the fault of the moment, and waits as long as it says.
    fn judge(&self, id: u64, direction: Direction, chunk: &[u8], counted: &mut Counted) -> Verdict {
        let arrived = Instant::now();
        let mut state = self.state();
        loop {
            if state.ended || !state.connections.contains_key(&id) {
                return Verdict::Gone;
            }
            let (fault, epoch) = {
                let way = state.way(direction);
                (way.fault, way.epoch)
            };
            match fault {
                Fault::Pass => return Verdict::Forward(chunk.to_vec()),
                Fault::Refuse => return Verdict::Gone,
                Fault::BlackHole => {
                    state.spoil(id);
                    return Verdict::Swallow;
                }
                Fault::Garbage => {
                    state.spoil(id);
                    return Verdict::Forward(vec![GARBAGE; chunk.len()]);
                }
                Fault::CutAfter(limit) => return counted.take(epoch, limit, chunk),
                Fault::HalfOpen => {
                    state = self
                        .changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner)
                }
                Fault::Delay(delay) => {
                    let left = delay.saturating_sub(arrived.elapsed());
                    if left.is_zero() {
                        return Verdict::Forward(chunk.to_vec());
                    }
                    state = self
                        .changed
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
            }
        }
    }

    fn close(&self, id: u64) {
        if let Some(connection) = self.state().connections.remove(&id) {
            connection.close();
        }
        self.changed.notify_all();
    }
}

/// How many bytes a connection has passed since the fault was set.
struct Counted {
    epoch: u64,
    bytes: usize,
}

impl Counted {
    fn take(&mut self, epoch: u64, limit: usize, chunk: &[u8]) -> Verdict {
        if self.epoch != epoch {
            *self = Counted { epoch, bytes: 0 };
        }
        let left = limit.saturating_sub(self.bytes);
        if chunk.len() >= left {
            return Verdict::Cut(chunk[..left].to_vec());
        }
        self.bytes += chunk.len();
        Verdict::Forward(chunk.to_vec())
    }
}
