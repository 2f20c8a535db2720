use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

/// A place where work stops until a test lets it go on.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    arrived: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Gate {
    pub(crate) fn closed() -> Self {
        Self {
            arrived: Arc::new(Semaphore::new(0)),
            open: Arc::new(Semaphore::new(0)),
        }
    }

    /// Called by the work: says that it is here, and waits.
    pub(crate) async fn pass(&self) {
        self.arrived.add_permits(1);
        self.open.acquire().await.unwrap().forget();
    }

    /// Waits until somebody is at the gate.
    pub(crate) async fn arrival(&self) {
        let arrival = timeout(Duration::from_secs(10), self.arrived.acquire()).await;
        arrival.expect("nobody came to the gate").unwrap().forget();
    }

    /// Lets one pass.
    pub(crate) fn let_go(&self) {
        self.open.add_permits(1);
    }
}
