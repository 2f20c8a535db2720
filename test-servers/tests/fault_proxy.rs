//! Each fault of the proxy does what it says, to a server that sends back what it gets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use idem_test_servers::{Direction, Fault, FaultProxy};

/// Silence is seen by waiting this long, which can only err towards a test that passes.
const SILENCE: Duration = Duration::from_millis(50);

fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut from = client.unwrap();
            thread::spawn(move || {
                let mut to = from.try_clone().unwrap();
                let _ = io::copy(&mut from, &mut to);
            });
        }
    });
    address
}

fn proxy() -> FaultProxy {
    FaultProxy::start(echo()).unwrap()
}

fn connect(proxy: &FaultProxy) -> TcpStream {
    TcpStream::connect(proxy.address()).unwrap()
}

fn asks(stream: &mut TcpStream) -> io::Result<[u8; 5]> {
    stream.write_all(b"hello")?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

fn is_silent(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    let result = stream.read(&mut [0]);
    stream.set_read_timeout(None).unwrap();
    result.is_err_and(|error| {
        matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        )
    })
}

/// Reads the end or an error, and not a byte.
fn is_cut(stream: &mut TcpStream) -> bool {
    !matches!(stream.read(&mut [0]), Ok(1))
}

#[test]
fn without_a_fault_everything_passes_both_ways() {
    let proxy = proxy();
    let mut stream = connect(&proxy);
    let sent: Vec<u8> = (0..1_000_000_u32).map(|at| at as u8).collect();
    let mut received = Vec::new();
    thread::scope(|threads| {
        let mut writer = stream.try_clone().unwrap();
        let sent = &sent;
        threads.spawn(move || {
            writer.write_all(sent).unwrap();
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        // Its end is the server's, which has seen ours.
        stream.read_to_end(&mut received).unwrap();
    });
    assert!(received == sent);
    assert_eq!(proxy.accepted(), 1);
    assert_eq!(proxy.passed(Direction::Requests), 1_000_000);
    assert_eq!(proxy.passed(Direction::Answers), 1_000_000);
}

#[test]
fn refusal_cuts_and_refuses_and_ends() {
    let proxy = proxy();
    let mut stream = connect(&proxy);
    asks(&mut stream).unwrap();
    for _ in 0..3 {
        proxy.set(Fault::Refuse).unwrap();
        assert!(is_cut(&mut stream));
        let refused = TcpStream::connect(proxy.address()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        proxy.set(Fault::Pass).unwrap();
        stream = connect(&proxy);
        assert_eq!(&asks(&mut stream).unwrap(), b"hello");
    }
}

#[test]
fn a_black_hole_swallows_and_cuts_at_its_end() {
    let proxy = proxy();
    let mut stream = connect(&proxy);
    asks(&mut stream).unwrap();
    proxy.set(Fault::BlackHole).unwrap();
    let mut second = connect(&proxy);
    for stream in [&mut stream, &mut second] {
        stream.write_all(b"lost").unwrap();
        assert!(is_silent(stream));
    }
    proxy.set(Fault::Pass).unwrap();
    assert!(is_cut(&mut stream));
    assert!(is_cut(&mut second));
    assert_eq!(&asks(&mut connect(&proxy)).unwrap(), b"hello");
}

#[test]
fn answers_alone_may_be_lost() {
    let proxy = proxy();
    let mut stream = connect(&proxy);
    asks(&mut stream).unwrap();
    proxy
        .set_one_way(Direction::Answers, Fault::BlackHole)
        .unwrap();
    stream.write_all(b"carried out").unwrap();
    assert!(is_silent(&mut stream));
    assert_eq!(proxy.passed(Direction::Requests), 16);
    assert_eq!(proxy.passed(Direction::Answers), 5);
}

#[test]
fn a_delay_delays_each_way() {
    let proxy = proxy();
    let mut stream = connect(&proxy);
    asks(&mut stream).unwrap();
    proxy.set(Fault::Delay(Duration::from_millis(20))).unwrap();
    let begun = Instant::now();
    assert_eq!(&asks(&mut stream).unwrap(), b"hello");
    assert!(
        begun.elapsed() >= Duration::from_millis(40),
        "{:?}",
        begun.elapsed()
    );

    // What is under way arrives with the end of the fault.
    proxy.set(Fault::Delay(Duration::from_secs(3600))).unwrap();
    stream.write_all(b"hello").unwrap();
    assert!(is_silent(&mut stream));
    proxy.set(Fault::Pass).unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
}

#[test]
fn a_cut_comes_after_its_bytes_on_each_connection() {
    let proxy = proxy();
    let mut stream = connect(&proxy);
    asks(&mut stream).unwrap();
    proxy
        .set_one_way(Direction::Answers, Fault::CutAfter(7))
        .unwrap();
    for mut stream in [stream, connect(&proxy)] {
        assert_eq!(&asks(&mut stream).unwrap(), b"hello");
        stream.write_all(b"hello").unwrap();
        let mut rest = Vec::new();
        // An error after the bytes is a cut as well.
        let _ = stream.read_to_end(&mut rest);
        assert_eq!(rest, b"he");
    }
    assert_eq!(proxy.passed(Direction::Answers), 5 + 7 + 7);

    // Set again, it counts anew.
    let mut stream = connect(&proxy);
    for _ in 0..3 {
        proxy
            .set_one_way(Direction::Answers, Fault::CutAfter(7))
            .unwrap();
        assert_eq!(&asks(&mut stream).unwrap(), b"hello");
    }
    assert_eq!(proxy.passed(Direction::Answers), 5 + 7 + 7 + 15);

    proxy
        .set_one_way(Direction::Requests, Fault::CutAfter(0))
        .unwrap();
    let mut stream = connect(&proxy);
    assert!(asks(&mut stream).is_err());
    assert_eq!(proxy.passed(Direction::Requests), 5 + 10 + 10 + 15);
}

#[test]
fn garbage_is_as_long_as_what_was_sent_and_nothing_of_it() {
    let proxy = proxy();
    let mut stream = connect(&proxy);
    asks(&mut stream).unwrap();
    proxy
        .set_one_way(Direction::Answers, Fault::Garbage)
        .unwrap();
    assert_eq!(asks(&mut stream).unwrap(), [0xFE; 5]);
    proxy.set(Fault::Pass).unwrap();
    assert!(is_cut(&mut stream));
}

#[test]
fn a_half_open_link_is_silent_and_goes_on_at_its_end() {
    let proxy = proxy();
    let mut stream = connect(&proxy);
    asks(&mut stream).unwrap();
    proxy.set(Fault::HalfOpen).unwrap();
    stream.write_all(b"hello").unwrap();
    assert!(is_silent(&mut stream));
    proxy.set(Fault::Pass).unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
    assert_eq!(&asks(&mut stream).unwrap(), b"hello");
}

#[test]
fn what_half_opens_can_be_cut_and_dropped() {
    let proxy = proxy();
    let mut stream = connect(&proxy);
    asks(&mut stream).unwrap();
    proxy.set(Fault::HalfOpen).unwrap();
    stream.write_all(b"hello").unwrap();
    proxy.cut();
    assert!(is_cut(&mut stream));
    assert_eq!(proxy.open(), 0);

    let mut stream = connect(&proxy);
    stream.write_all(b"hello").unwrap();
    let address = proxy.address();
    drop(proxy);
    assert!(is_cut(&mut stream));
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_server_that_is_down_closes_the_connection() {
    let gone = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let proxy = FaultProxy::start(gone).unwrap();
    assert!(is_cut(&mut connect(&proxy)));
}
