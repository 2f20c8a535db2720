use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

/// The named values of a body.
///
/// JSON and forms both let a name come twice, and readers differ in which of the two counts: one that checks
/// the amount and one that charges it must not see two amounts. So it is noted, for a request like this to be
/// refused.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) values: Map<String, Value>,
    pub(super) is_one_named_twice: bool,
}

impl Members {
    fn add(&mut self, name: String, value: Value) {
        self.is_one_named_twice |= self.values.insert(name, value).is_some();
    }
}

impl FromIterator<(String, Value)> for Members {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(pairs: I) -> Self {
        let mut members = Self::default();
        for (name, value) in pairs {
            members.add(name, value);
        }
        members
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Collect)
    }
}

struct Collect;

impl<'de> Visitor<'de> for Collect {
    type Value = Members;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
        let mut members = Members::default();
        while let Some((name, value)) = map.next_entry()? {
            members.add(name, value);
        }
        Ok(members)
    }
}
