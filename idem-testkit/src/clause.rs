use std::fmt;

use serde::{Serialize, Serializer};

macro_rules! clauses {
    ($($variant:ident = $name:literal, $meaning:literal;)*) => {
        /// What a case is about: a clause of the store contract (`K…`, see [`KeyStore`](idem_core::KeyStore)), or a
        /// row of the decision table (`D…`, see [`decide`](idem_core::decide)).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Clause {
            $(#[doc = $meaning] $variant,)*
        }

        impl Clause {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its number.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What it asks for, in a few words.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }
        }
    };
}

clauses! {
    K1 = "K1", "Claims are one atomic step with one winner";
    K2 = "K2", "Transitions are a compare-and-swap, exactly as the model has it";
    K3 = "K3", "`Ok` means durable";
    K4 = "K4", "Bytes come back exactly";
    K5 = "K5", "Ids are exact";
    K6 = "K6", "Expiry is never hidden";
    K7 = "K7", "Reads that decide are not stale";
    K8 = "K8", "Errors are typed, and never taken for absence";
    K9 = "K9", "Dropping a call leaves the store whole";
    K10 = "K10", "Sweeping removes only what has expired, by identity, up to its limit";
    K11 = "K11", "No connection is held between calls";
    K12 = "K12", "`Contended` only while somebody else is writing";
    K13 = "K13", "`Refused` only from caches, and only while it is true enough";
    D1 = "D1", "Nothing is held: claimed";
    D2 = "D2", "Finished and expired: restarted";
    D3 = "D3", "In progress under the claim's own token: resumed";
    D4 = "D4", "Another operation: mismatch";
    D5 = "D5", "Another scheme: incomparable";
    D6 = "D6", "Another payload: mismatch";
    D7 = "D7", "Completed: replayed";
    D8 = "D8", "Failed for good: replayed";
    D9 = "D9", "Failed retryable, certain or within its terms: taken over";
    D10 = "D10", "Failed retryable, otherwise: outcome unknown";
    D11 = "D11", "In progress within its lease: busy";
    D12 = "D12", "Lease over, within its terms: taken over";
    D13 = "D13", "Lease over, otherwise: outcome unknown";
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Clause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
