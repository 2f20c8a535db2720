//! Serving a router until somebody asks to stop.

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::sleep;

/// What a server prints before its address, once it accepts connections.
pub const READY: &str = "listening on ";

/// When a server stops, beside Ctrl-C, SIGTERM and SIGHUP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// At nothing else.
    UntilSignal,
    /// When its standard input ends: whoever started it is gone, however it went, or wants it to stop.
    UntilInputEnds,
}

/// How long a server that was asked to stop waits for its connections: longer than a body and a provider may
/// take together.
const LAST_REQUESTS: Duration = Duration::from_secs(25);

/// Serves `router` at `address`, says so on standard output, and returns when the last request is answered
/// after it was asked to stop, or 25 seconds later: a client that never ends its request does not keep it.
///
/// # Errors
///
/// When the address cannot be bound, or no signal handler installed.
pub async fn serve(address: SocketAddr, router: Router, lifetime: Lifetime) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let stop = stop_asked(lifetime)?;
    let mut out = io::stdout();
    writeln!(out, "{READY}http://{}", listener.local_addr()?)?;
    out.flush()?;
    serve_until(stop, listener, router).await
}

async fn serve_until(
    stop: impl Future<Output = ()> + Send + 'static,
    listener: TcpListener,
    router: Router,
) -> io::Result<()> {
    let (stopping, asked) = oneshot::channel();
    let serving = axum::serve(listener, router).with_graceful_shutdown(async move {
        stop.await;
        let _ = stopping.send(());
    });
    let too_long = async move {
        match asked.await {
            Ok(()) => sleep(LAST_REQUESTS).await,
            // It was not asked: serving has ended by itself.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        served = serving.into_future() => served,
        () = too_long => Ok(()),
    }
}

/// Resolves at Ctrl-C, at SIGTERM, at SIGHUP, or at the end of `lifetime`.
///
/// # Errors
///
/// When no signal handler can be installed.
pub fn stop_asked(lifetime: Lifetime) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let input = match lifetime {
        Lifetime::UntilSignal => None,
        Lifetime::UntilInputEnds => Some(input_ends()),
    };
    Ok(async move {
        let input = async move {
            match input {
                Some(ended) => {
                    let _ = ended.await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
            () = input => {}
        }
    })
}

/// Resolves when standard input ends. A thread waits for it, since a read of the runtime's own would keep the
/// runtime from ending.
fn input_ends() -> oneshot::Receiver<()> {
    let (ended, wait) = oneshot::channel();
    std::thread::spawn(move || {
        let mut ignored = [0; 64];
        while matches!(io::stdin().read(&mut ignored), Ok(read) if read > 0) {}
        let _ = ended.send(());
    });
    wait
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpStream;
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_that_never_ends_does_not_keep_a_server_that_is_to_stop() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, asked) = oneshot::channel::<()>();
        let asked = async move { drop(asked.await) };
        let serving = tokio::spawn(serve_until(asked, listener, Router::new()));
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"POST / HTTP/1.1\r\nhost").await.unwrap();
        // Until the server has it.
        sleep(Duration::from_secs(1)).await;
        drop(stop);
        let started = Instant::now();
        let served = timeout(2 * LAST_REQUESTS, serving).await;
        served.unwrap().unwrap().unwrap();
        assert!(started.elapsed() >= LAST_REQUESTS);
    }
}
