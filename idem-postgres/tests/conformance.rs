//! The conformance suite in every way in which a store can be had.

mod support;

use idem_core::Span;
use idem_postgres::Coalescing;
use support::{Server, Setup, Shape};

const fn plain() -> Setup {
    Setup {
        server: Server::Shared,
        coalescing: Coalescing::default,
        table: None,
        shape: Shape::Whole,
        connections: 6,
        skew: Span::ZERO,
    }
}

mod coalesced {
    idem_testkit::conformance!(super::plain());
}

mod each_by_itself {
    idem_testkit::conformance!(super::Setup {
        coalescing: || super::Coalescing::Off,
        ..super::plain()
    });
}

mod pool_of_one {
    idem_testkit::conformance!(super::Setup {
        connections: 1,
        ..super::plain()
    });
}

mod clocks_apart {
    idem_testkit::conformance!(super::Setup {
        skew: super::Span::from_millis(10),
        ..super::plain()
    });
}

mod another_table {
    idem_testkit::conformance!(super::Setup {
        table: Some("Idempotency_Keys"),
        ..super::plain()
    });
}

mod in_partitions {
    idem_testkit::conformance!(super::Setup {
        shape: super::Shape::Partitioned,
        ..super::plain()
    });
}

mod version_18 {
    idem_testkit::conformance!(super::Setup {
        server: super::Server::Version18,
        ..super::plain()
    });
}

/// More clients than server connections.
mod behind_a_transaction_pooler {
    idem_testkit::conformance!(super::Setup {
        server: super::Server::TransactionPooler,
        ..super::plain()
    });
}
