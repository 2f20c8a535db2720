//! Calls of every kind, dropped wherever they wait: no transaction stays open, no connection is lost, and nobody who travels
//! with them notices.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod tools;

use std::num::NonZeroU32;
use std::time::Duration;

use idem_core::executor::{Begin, Idempotency, Outcome};
use idem_core::{
    Claim, ClaimOutcome, Expect, Filter, Inspect as _, KeyStore as _, Policy, RecoveryPoint, Span,
    Status, Transition, TransitionOutcome,
};
use idem_postgres::{PgKeyStore, PgOptions, Pooling};
use sqlx::Executor as _;
use tools::{
    Database, answer, brief_claim, claim, complete, drop_after, lease, owner, renew, request, soon,
    win,
};

/// How many calls of each kind are dropped.
const CALLS: usize = 100;

/// How often a call is polled before it is dropped, at most. None waits more often.
const POLLS: usize = 20;

const CONNECTIONS: u32 = 3;

struct Scene {
    database: Database,
    store: PgKeyStore,
}

impl Scene {
    async fn new(kind: &str) -> Option<Self> {
        let database = Database::new(&format!("dropped_{kind}"))?;
        let store = database.store(PgOptions::new(), CONNECTIONS).await;
        Some(Self { database, store })
    }

    /// Polls a call a number of times that is another one each round, and drops it. Before it, after it, or not at all,
    /// others are begun, whose answers are told.
    async fn drop_beside<T, A: Send>(
        &self,
        round: usize,
        call: impl Future<Output = T>,
        other: impl AsyncFn(usize) -> A,
    ) -> Vec<A> {
        let polls = round / 3 % POLLS;
        match round % 3 {
            0 => {
                drop(soon(drop_after(polls, call)).await);
                vec![other(0).await]
            }
            1 => {
                let (_, first, second) = tokio::join!(drop_after(polls, call), other(0), other(1));
                vec![first, second]
            }
            _ => {
                let (first, _, second) = tokio::join!(other(0), drop_after(polls, call), other(1));
                vec![first, second]
            }
        }
    }

    async fn end(self) {
        self.database.is_whole(self.store.pool()).await;
        soon(win(&self.store, &claim("after-all-of-them"))).await;
    }

    /// One owner's write of each round is dropped; the same of others is done.
    async fn drop_writes(
        self,
        owned: impl Fn(&str) -> Claim,
        change: &Transition,
        expect: impl Fn(&Claim) -> Expect,
    ) {
        for round in 0..CALLS {
            let victim = owned(&format!("victim-{round}"));
            let others = [0, 1].map(|other| owned(&format!("other-{round}-{other}")));
            win(&self.store, &victim).await;
            for other in &others {
                win(&self.store, other).await;
            }
            let call = self.store.transition(victim.id(), expect(&victim), change);
            let told = self.drop_beside(round, call, async |other: usize| {
                let other = &others[other];
                self.store
                    .transition(other.id(), expect(other), change)
                    .await
            });
            for told in told.await {
                let told = told.unwrap();
                assert!(
                    matches!(told, TransitionOutcome::Applied { .. }),
                    "{told:?}"
                );
            }
            // The old record or the new one, and it can be written at once.
            let again = soon(self.store.transition(victim.id(), expect(&victim), change)).await;
            // Contended if the server is still at the one that was dropped.
            again.unwrap();
        }
        self.end().await;
    }
}

#[tokio::test]
async fn claims() {
    let Some(scene) = Scene::new("claims").await else {
        return;
    };
    for round in 0..CALLS {
        let victim = claim(&format!("victim-{round}"));
        let others = [0, 1].map(|other| claim(&format!("other-{round}-{other}")));
        let told = scene.drop_beside(round, scene.store.claim(&victim), async |other: usize| {
            scene.store.claim(&others[other]).await
        });
        for told in told.await {
            let told = told.unwrap();
            assert!(matches!(told, ClaimOutcome::Won(_)), "{told:?}");
        }
        // Sent again, it owns the record, whether or not the one that was dropped was made.
        let again = loop {
            match soon(scene.store.claim(&victim)).await.unwrap() {
                ClaimOutcome::Contended { .. } => tokio::task::yield_now().await,
                other => break other,
            }
        };
        let (ClaimOutcome::Won(held) | ClaimOutcome::Held(held)) = again else {
            panic!("{again:?}")
        };
        assert_eq!(held.record.token, victim.token());
    }
    scene.end().await;
}

#[tokio::test]
async fn replays() {
    let Some(scene) = Scene::new("replays").await else {
        return;
    };
    let first = claim("k");
    win(&scene.store, &first).await;
    let change = complete("x");
    let done = scene.store.transition(first.id(), owner(&first), &change);
    assert!(matches!(
        done.await.unwrap(),
        TransitionOutcome::Applied { .. }
    ));
    for round in 0..CALLS {
        let again = claim("k");
        let told = scene.drop_beside(round, scene.store.claim(&again), async |_| {
            scene.store.claim(&claim("k")).await
        });
        for told in told.await {
            let ClaimOutcome::Held(held) = told.unwrap() else {
                panic!()
            };
            assert_eq!(held.record.state.response(), Some(&answer("x")));
        }
    }
    scene.end().await;
}

#[tokio::test]
async fn answers() {
    if let Some(scene) = Scene::new("answers").await {
        scene.drop_writes(claim, &complete("x"), owner).await;
    }
}

#[tokio::test]
async fn renewals() {
    if let Some(scene) = Scene::new("renewals").await {
        scene.drop_writes(claim, &renew(), owner).await;
    }
}

#[tokio::test]
async fn releases() {
    if let Some(scene) = Scene::new("releases").await {
        scene.drop_writes(claim, &Transition::Release, owner).await;
    }
}

#[tokio::test]
async fn checkpoints() {
    let Some(scene) = Scene::new("checkpoints").await else {
        return;
    };
    let point = RecoveryPoint::new("charged").unwrap();
    let change = Transition::Checkpoint {
        point: point.with_data(vec![7; 100]).unwrap(),
        sequence: 1,
        lease: lease(),
    };
    scene.drop_writes(claim, &change, owner).await;
}

#[tokio::test]
async fn takeovers() {
    let Some(scene) = Scene::new("takeovers").await else {
        return;
    };
    let by = claim("taker");
    let change = Transition::TakeOver {
        token: by.token(),
        lease: Span::ZERO,
    };
    let expect = |claim: &Claim| Expect::Unchanged {
        token: claim.token(),
        revision: idem_core::Revision::FIRST,
    };
    scene.drop_writes(brief_claim, &change, expect).await;
}

#[tokio::test]
async fn reads_and_sweeps() {
    let Some(scene) = Scene::new("reads").await else {
        return;
    };
    let store = &scene.store;
    let expired = Policy::builder().retention(Duration::ZERO).build().unwrap();
    let kept = claim("kept");
    win(store, &kept).await;
    let limit = NonZeroU32::new(10).unwrap();
    for round in 0..CALLS {
        let swept = Claim::fresh(request(&format!("swept-{round}")), &expired).unwrap();
        win(store, &swept).await;
        let change = complete("x");
        let done = store.transition(swept.id(), owner(&swept), &change);
        assert!(matches!(
            done.await.unwrap(),
            TransitionOutcome::Applied { .. }
        ));

        for loaded in scene
            .drop_beside(round, store.load(kept.id()), async |_| {
                store.load(kept.id()).await
            })
            .await
        {
            assert_eq!(loaded.unwrap().unwrap().record.token, kept.token());
        }
        for counted in scene
            .drop_beside(round, store.count(), async |_| store.count().await)
            .await
        {
            assert_eq!(counted.unwrap().in_progress, 1);
        }
        let filter = Filter::default();
        for listed in scene
            .drop_beside(round, store.list(&filter, None, limit), async |_| {
                store.list(&filter, None, limit).await
            })
            .await
        {
            assert!(!listed.unwrap().is_empty());
        }
        for swept in scene
            .drop_beside(round, store.sweep(limit), async |_| {
                store.sweep(limit).await
            })
            .await
        {
            assert!(swept.unwrap().removed <= 1);
        }
    }
    soon(async {
        while store.count().await.unwrap().completed > 0 {
            store.sweep(limit).await.unwrap();
        }
    })
    .await;
    assert!(store.load(kept.id()).await.unwrap().is_some());
    scene.end().await;
}

#[tokio::test]
async fn migrations_and_checks() {
    let Some(scene) = Scene::new("migrations").await else {
        return;
    };
    for round in 0..CALLS {
        let options = || {
            PgOptions::new()
                .schema(format!("schema_{}", round / 4))
                .unwrap()
                .table(format!("table_{round}"))
                .unwrap()
        };
        let store = options().build(scene.store.pool().clone());
        drop(soon(drop_after(round / 2 % POLLS, store.migrate())).await);
        // What was dropped is there as a whole or not at all.
        soon(store.migrate()).await.unwrap();
        drop(soon(drop_after(round / 2 % POLLS, store.check())).await);
        soon(store.check()).await.unwrap();
    }
    scene.end().await;
}

#[tokio::test]
async fn transactions() {
    let Some(scene) = Scene::new("transactions").await else {
        return;
    };
    scene
        .database
        .run("CREATE TABLE orders (item text PRIMARY KEY)")
        .await;
    let policy = Policy::default();
    let store = &scene.store;
    let order = |key: String| async move {
        let request = request(&key);
        let work = |mut tx: idem_postgres::Tx<'static>| {
            let key = key.clone();
            async move {
                let sql = "INSERT INTO orders VALUES ($1)";
                sqlx::query(sql).bind(key).execute(&mut *tx).await?;
                Ok::<_, sqlx::Error>(Outcome::Completed(answer("x")))
            }
        };
        store.execute_in_tx(&request, &policy, work).await
    };
    let policy = Policy::default();
    let within = |key: String, policy: Policy| async move {
        let mut transaction = store.pool().begin().await.unwrap();
        let request = request(&key);
        let sql = "INSERT INTO orders VALUES ($1)";
        let done = store.execute_within(&mut transaction, &request, &policy, |mut tx| async move {
            sqlx::query(sql).bind(key).execute(&mut *tx).await?;
            Ok::<_, sqlx::Error>(Outcome::Completed(answer("x")))
        });
        let _ = done.await.unwrap();
        transaction.commit().await.unwrap();
    };
    for round in 0..CALLS {
        // The caller's own `begin` is sqlx's, whose trap this is not about: it is taken in a task that ends.
        let key = format!("owned-{round}");
        drop(soon(drop_after(round % POLLS, order(key.clone()))).await);
        // At once, before anybody has the connection next, and ends what he finds open.
        scene.database.nothing_is_open().await;
        let key = format!("within-{round}");
        let task = tokio::spawn(within_in_task(store.clone(), key.clone(), round % POLLS));
        soon(task).await.unwrap();
        if round % 10 == 0 {
            within(format!("live-{round}"), policy).await;
        }
    }
    scene.database.is_whole(store.pool()).await;
    let apart = "SELECT count(*) FROM orders FULL JOIN idem_record ON item = \"key\" WHERE item IS NULL OR \"key\" IS NULL";
    assert_eq!(scene.database.number(apart).await, 0);
    scene.end().await;
}

/// A transaction of the caller's, in which the call is dropped; then the transaction is.
async fn within_in_task(store: PgKeyStore, key: String, polls: usize) {
    let mut transaction = store.pool().begin().await.unwrap();
    let (request, policy) = (request(&key), Policy::default());
    let done = store.execute_within(&mut transaction, &request, &policy, |mut tx| async move {
        let sql = "INSERT INTO orders VALUES ($1)";
        sqlx::query(sql).bind(key).execute(&mut *tx).await?;
        Ok::<_, sqlx::Error>(Outcome::Completed(answer("x")))
    });
    let done = drop_after(polls, done).await;
    if done.is_some() {
        transaction.commit().await.unwrap();
    }
}

#[tokio::test]
async fn joined_answers() {
    let Some(scene) = Scene::new("joined").await else {
        return;
    };
    let idempotency = Idempotency::new(scene.store.clone());
    for round in 0..CALLS {
        let request = request(&format!("k-{round}"));
        let Begin::Execute(execution) = idempotency.begin(&request).await.unwrap() else {
            panic!()
        };
        let attempt = execution.attempt();
        let mut transaction = scene.store.pool().begin().await.unwrap();
        let response = answer("x");
        let joined = scene
            .store
            .complete_in(&mut transaction, &attempt, &response);
        let joined = soon(drop_after(round % 8, joined)).await;
        match joined {
            Some(joined) => {
                joined.unwrap();
                transaction.commit().await.unwrap();
                let held = scene.store.load(&request.id).await.unwrap().unwrap();
                assert_eq!(held.record.status(), Status::Completed);
            }
            None => {
                drop(transaction);
                let held = scene.store.load(&request.id).await.unwrap().unwrap();
                assert_eq!(held.record.status(), Status::InProgress);
            }
        }
        drop(execution);
    }
    scene.end().await;
}

/// Statements that carry their values, as behind a pooler: they are dropped in the middle of one long message.
#[tokio::test]
async fn statements_in_one_message() {
    let Some(database) = Database::new("dropped_text") else {
        return;
    };
    let store = database
        .store(PgOptions::new().pooling(Pooling::Transaction), CONNECTIONS)
        .await;
    for round in 0..CALLS {
        let victim = claim(&format!("k-{round}"));
        drop(drop_after(round % POLLS, store.claim(&victim)).await);
        let large = complete(&"x".repeat(500_000));
        let dropped = store.transition(victim.id(), owner(&victim), &large);
        drop(drop_after(round % POLLS, dropped).await);
        let mut connection = store.pool().acquire().await.unwrap();
        connection.execute("SELECT 1").await.unwrap();
    }
    database.is_whole(store.pool()).await;
    soon(win(&store, &claim("after-all-of-them"))).await;
}
