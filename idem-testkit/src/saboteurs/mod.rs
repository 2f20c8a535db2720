//! Stores that are broken on purpose, each in one way, to show that the suite notices.
//!
//! Every one is the honest store of this module with a few lines changed. The table says which cases catch it;
//! a test runs all of them and keeps the table true, and another one sees to it that there is no case which
//! catches nobody.
#![doc = include_str!("../../saboteurs.md")]

/// A [`Saboteur`] from the methods of [`Sabotage`] that it overrides, and the state that it keeps, if any.
macro_rules! saboteur {
    ($name:ident: $breaks:literal, $state:ty { $($body:tt)* }) => {{
        #[derive(Debug, Default)]
        struct It($state);

        #[async_trait::async_trait]
        impl $crate::saboteurs::engine::Sabotage for It {
            $($body)*
        }

        $crate::saboteurs::Saboteur::new(stringify!($name), $breaks, || Box::new(It::default()))
    }};
    ($name:ident: $breaks:literal { $($body:tt)* }) => {
        saboteur!($name: $breaks, () { $($body)* })
    };
}

mod bytes;
mod caches;
mod claims;
mod database;
mod engine;
mod faults;
mod ids;
mod owners;
mod swaps;
mod sweeps;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use idem_core::{RecordId, Span};

use crate::harness::{Foreign, Harness, LockScope, Missing, OpenWrite, Unavailable};
use database::Database;
pub use engine::Broken;
use engine::Sabotage;

/// A store that is broken in one way, as a harness to run the suite over.
///
/// ```
/// use idem_testkit::{Suite, saboteurs};
///
/// let Some(saboteur) = saboteurs::all().into_iter().find(|one| one.name() == "looks_then_inserts") else {
///     panic!("there is no such saboteur");
/// };
/// let report = Suite::new().only("claim_race").run(saboteur);
/// assert!(!report.is_conformant(), "it got away");
/// ```
#[derive(Clone, Copy)]
pub struct Saboteur {
    name: &'static str,
    breaks: &'static str,
    make: fn() -> Box<dyn Sabotage>,
}

impl Saboteur {
    pub(crate) const fn new(
        name: &'static str,
        breaks: &'static str,
        make: fn() -> Box<dyn Sabotage>,
    ) -> Self {
        Self { name, breaks, make }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What it does wrong.
    #[must_use]
    pub fn breaks(&self) -> &'static str {
        self.breaks
    }
}

impl std::fmt::Debug for Saboteur {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Saboteur").field(&self.name).finish()
    }
}

/// All of them.
#[must_use]
pub fn all() -> Vec<Saboteur> {
    let mut all = Vec::new();
    all.extend(claims::all());
    all.extend(ids::all());
    all.extend(bytes::all());
    all.extend(owners::all());
    all.extend(swaps::all());
    all.extend(sweeps::all());
    all.extend(faults::all());
    all.extend(caches::all());
    all
}

/// The store that they are made from, with nothing changed. The suite must find nothing wrong with it, and, since
/// it has every hook, skips only what is about caches.
#[must_use]
pub fn honest() -> Saboteur {
    Saboteur::new("honest", "nothing", || Box::new(Honest))
}

/// The same with an honest cache in front, for the cases that are about caches.
#[must_use]
pub fn honest_cache() -> Saboteur {
    Saboteur::new("honest_cache", "nothing", caches::honest)
}

#[derive(Debug)]
struct Honest;

impl Sabotage for Honest {}

/// The data of a [`Saboteur`]: a database, and another table in it.
#[derive(Debug)]
pub struct Disk {
    database: Arc<Database>,
    beside: Arc<Database>,
}

const CONNECTIONS: usize = 8;

#[async_trait]
impl Harness for Saboteur {
    type Data = Disk;
    type Store = Broken;

    async fn create(&self) -> Result<Disk, Unavailable> {
        Ok(Disk {
            database: Arc::new(Database::new()),
            beside: Arc::new(Database::new()),
        })
    }

    async fn open(&self, data: &Disk) -> Result<Broken, Unavailable> {
        Ok(Broken::new(
            Arc::clone(&data.database),
            (self.make)(),
            CONNECTIONS,
        ))
    }

    fn contention_bound(&self) -> Duration {
        Duration::from_millis(20)
    }

    async fn open_with_one_connection(&self, data: &Disk) -> Result<Broken, Missing> {
        Ok(Broken::new(Arc::clone(&data.database), (self.make)(), 1))
    }

    async fn open_beside(&self, data: &Disk) -> Result<Broken, Missing> {
        let sabotage = (self.make)();
        let database = if sabotage.isolates() {
            &data.beside
        } else {
            &data.database
        };
        Ok(Broken::new(Arc::clone(database), sabotage, CONNECTIONS))
    }

    async fn advance(&self, data: &Disk, by: Span) -> Result<(), Missing> {
        data.database.advance(by);
        data.beside.advance(by);
        Ok(())
    }

    async fn crash(&self, data: &Disk) -> Result<(), Missing> {
        data.database.lose_power();
        Ok(())
    }

    async fn corrupt(&self, data: &Disk, id: &RecordId) -> Result<(), Missing> {
        let id = (self.make)().folded(id);
        data.database.tables().unknown.insert(id);
        Ok(())
    }

    async fn interfere(
        &self,
        data: &Disk,
        write: Foreign<'_>,
    ) -> Result<Box<dyn OpenWrite>, Missing> {
        let (id, creating) = match write {
            Foreign::Creating(claim) => (claim.id(), Some(claim)),
            Foreign::Locking(id) => (id, None),
        };
        data.database.lock(id, creating);
        Ok(Box::new(Uncommitted {
            database: Arc::clone(&data.database),
            id: id.clone(),
        }))
    }
}

struct Uncommitted {
    database: Arc<Database>,
    id: RecordId,
}

#[async_trait]
impl OpenWrite for Uncommitted {
    async fn commit(self: Box<Self>) {
        self.database.unlock(&self.id, true);
    }

    async fn roll_back(self: Box<Self>) {
        self.database.unlock(&self.id, false);
    }

    fn scope(&self) -> LockScope {
        LockScope::Record
    }
}

impl Drop for Uncommitted {
    fn drop(&mut self) {
        self.database.unlock(&self.id, false);
    }
}
