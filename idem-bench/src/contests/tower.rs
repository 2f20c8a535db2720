//! An axum route behind the layer, beside the same route without it.
//!
//! An operation is one keyed POST over a connection that is kept, from the request's first byte to the answer's last. The
//! server and its clients share the machine, as they do on both sides, and the store is the one in memory: what is
//! measured is the layer.

use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::post;
use idem_core::executor::Idempotency;
use idem_core::{MemoryKeyStore, Nulls, Profile, Rules, Scope, SystemClock};
use idem_tower::IdempotencyLayer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::contest::{Contest, Contestant, Fault, Goal, Length, Other, Place, Plan, Role};
use crate::load::{Caller, Round, runtime, tasks};

const BODY: &str =
    r#"{"amount":1999,"currency":"EUR","customer":"cus_8f3k2","source":"tok_visa","capture":true}"#;
const ANSWER: &str = r#"{"id":"ch_1","status":"succeeded","amount":1999,"currency":"EUR"}"#;

/// How many keys a replay goes round.
const REPLAYED: usize = 1024;

/// How many connections the goals are about.
const CONNECTIONS: u32 = 64;

pub(crate) fn contests(_: &Place) -> Result<Vec<Contest>, Fault> {
    let length = Length::Operations {
        full: 20_000,
        quick: 500,
    };
    let contest = |name, operation, ours, others: Vec<Other>| {
        Ok::<_, Fault>(Contest {
            name,
            operation,
            callers: vec![1, CONNECTIONS],
            length,
            ours: Box::new(Http::new(ours)?),
            others,
        })
    };
    let goal = |ratio| Goal {
        callers: CONNECTIONS,
        ratio,
    };
    Ok(vec![
        contest(
            "tower/first",
            "a POST with a fresh key, answered over a kept connection",
            Route::First,
            vec![other(Route::Bare, Role::Floor, vec![goal(0.75)])?],
        )?,
        contest(
            "tower/replay",
            "a POST whose answer is stored",
            Route::Replay,
            vec![
                other(Route::Bare, Role::Floor, vec![])?,
                other(Route::First, Role::Rival, vec![goal(1.0)])?,
            ],
        )?,
    ])
}

fn other(route: Route, role: Role, goals: Vec<Goal>) -> Result<Other, Fault> {
    Ok(Other {
        role,
        contestant: Box::new(Http::new(route)?),
        goals,
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    /// Without the layer.
    Bare,
    /// Behind the layer, every key being new.
    First,
    /// Behind the layer, every key being known.
    Replay,
}

struct Http {
    runtime: Runtime,
    route: Route,
}

impl Http {
    fn new(route: Route) -> Result<Self, Fault> {
        Ok(Self {
            runtime: runtime()?,
            route,
        })
    }
}

async fn charge(body: Bytes) -> impl IntoResponse {
    let status = if body.len() == BODY.len() {
        StatusCode::CREATED
    } else {
        StatusCode::BAD_REQUEST
    };
    (status, [(header::CONTENT_TYPE, "application/json")], ANSWER)
}

impl Contestant for Http {
    fn name(&self) -> String {
        match self.route {
            Route::Bare => "axum alone",
            Route::First => "axum and idem-tower, first requests",
            Route::Replay => "axum and idem-tower, replays",
        }
        .to_owned()
    }

    fn round(&mut self, plan: Plan) -> Result<Round, Fault> {
        let (server, callers) = self.runtime.block_on(async {
            let server = Server::start(self.route).await?;
            let mut callers = Vec::new();
            for caller in 0..plan.callers {
                let first = match self.route {
                    Route::Replay => REPLAYED * caller as usize / plan.callers as usize,
                    Route::Bare | Route::First => 0,
                };
                callers.push(Client::connect(server.address, self.route, caller, first).await?);
            }
            if let (Route::Replay, Some(client)) = (self.route, callers.first_mut()) {
                for _ in 0..REPLAYED {
                    client.call().await?;
                }
            }
            Ok::<_, Fault>((server, callers))
        })?;
        let round = tasks(&self.runtime, plan, callers)?;
        server.task.abort();
        Ok(round)
    }
}

struct Server {
    address: SocketAddr,
    task: JoinHandle<io::Result<()>>,
}

impl Server {
    async fn start(route: Route) -> Result<Self, Fault> {
        let router = Router::new().route("/v1/charges", post(charge));
        let router = match route {
            Route::Bare => router,
            Route::First | Route::Replay => {
                let idempotency = Idempotency::new(MemoryKeyStore::new(SystemClock));
                let rules = Rules::new(Profile::new(1), Nulls::Distinct);
                let layer = IdempotencyLayer::builder(idempotency, rules)
                    .single_scope(Scope::new("acct_1")?)
                    .build();
                router.layer(layer)
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { address, task })
    }
}

/// A client that does as little as it can: the time is the server's.
struct Client {
    connection: TcpStream,
    route: Route,
    caller: u32,
    next: usize,
    sent: Vec<u8>,
    answer: Vec<u8>,
}

impl Client {
    async fn connect(
        address: SocketAddr,
        route: Route,
        caller: u32,
        first: usize,
    ) -> Result<Self, Fault> {
        let connection = TcpStream::connect(address).await?;
        connection.set_nodelay(true)?;
        Ok(Self {
            connection,
            route,
            caller,
            next: first,
            sent: Vec::with_capacity(512),
            answer: Vec::with_capacity(1024),
        })
    }

    /// As long as the UUIDs that clients use.
    fn key(&mut self) -> String {
        let (caller, key) = match self.route {
            // All callers replay the same keys.
            Route::Replay => (0, self.next % REPLAYED),
            Route::Bare | Route::First => (self.caller, self.next),
        };
        self.next += 1;
        format!("{caller:08x}-9c6d-4b0e-8f5a-{key:012x}")
    }
}

impl Caller for Client {
    async fn call(&mut self) -> Result<(), Fault> {
        let key = self.key();
        self.sent.clear();
        let length = BODY.len();
        self.sent.extend(
            format!(
                "POST /v1/charges HTTP/1.1\r\nhost: bench\r\nidempotency-key: {key}\r\n\
                content-type: application/json\r\ncontent-length: {length}\r\n\r\n{BODY}"
            )
            .bytes(),
        );
        self.connection.write_all(&self.sent).await?;
        self.answer.clear();
        // The answer is the last thing that comes.
        while !self.answer.ends_with(ANSWER.as_bytes()) {
            if self.connection.read_buf(&mut self.answer).await? == 0 {
                return Err("the server closed the connection".into());
            }
        }
        if !self.answer.starts_with(b"HTTP/1.1 201") {
            return Err("another status than 201".into());
        }
        Ok(())
    }
}
