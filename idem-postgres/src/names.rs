use thiserror::Error;

/// The schema and the table, as they stand in statements: quoted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    schema: Option<String>,
    table: String,
}

/// What the names are if nothing else is said.
const TABLE: &str = "idem_record";

/// Postgres cuts longer names off, and two of them may then be one.
const LONGEST: usize = 63;

/// The longest of the suffixes that other things than the table are named with.
const SUFFIX: &str = "_unresolved";

impl Default for Names {
    fn default() -> Self {
        Self {
            schema: None,
            table: TABLE.to_owned(),
        }
    }
}

impl Names {
    /// These names, in this schema.
    ///
    /// # Errors
    ///
    /// [`InvalidName`], see there.
    pub(crate) fn in_schema(self, schema: String) -> Result<Self, InvalidName> {
        check(&schema, LONGEST)?;
        Ok(Self {
            schema: Some(schema),
            ..self
        })
    }

    /// These names, with this table.
    ///
    /// # Errors
    ///
    /// [`InvalidName`], see there.
    pub(crate) fn of_table(self, table: String) -> Result<Self, InvalidName> {
        check(&table, LONGEST - SUFFIX.len())?;
        Ok(Self { table, ..self })
    }

    /// The schema, if one was named. Without one the `search_path` of the connection finds the table.
    pub(crate) fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// The table of the records.
    pub(crate) fn records(&self) -> String {
        self.qualified("")
    }

    /// The table of the migrations that were carried out.
    pub(crate) fn migrations(&self) -> String {
        self.qualified("_migration")
    }

    /// A name for people.
    pub(crate) fn display(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{schema}.{}", self.table),
            None => self.table.clone(),
        }
    }

    /// SQL that was written for the default names, with these in their place.
    ///
    /// Tables are qualified. An index is created without a schema: it is always in its table's.
    pub(crate) fn apply(&self, sql: &str) -> String {
        let mut rest = sql;
        let mut text = String::with_capacity(sql.len() + 256);
        while let Some(at) = rest.find(TABLE) {
            let (before, from) = rest.split_at(at);
            text.push_str(before);
            let after = from.trim_start_matches(|c: char| c == '_' || c.is_ascii_alphanumeric());
            let (name, after) = from.split_at(from.len() - after.len());
            rest = after;
            let suffix = name.strip_prefix(TABLE).unwrap_or_default();
            match suffix {
                "" | "_migration" => text.push_str(&self.qualified(suffix)),
                _ => text.push_str(&quote(&format!("{}{suffix}", self.table))),
            }
        }
        text.push_str(rest);
        text
    }

    fn qualified(&self, suffix: &str) -> String {
        let table = quote(&format!("{}{suffix}", self.table));
        match &self.schema {
            Some(schema) => format!("{}.{table}", quote(schema)),
            None => table,
        }
    }
}

/// Nothing that passes [`check`] needs more than quotes around it, which keep its case.
pub(crate) fn quote(name: &str) -> String {
    format!("\"{name}\"")
}

fn check(name: &str, longest: usize) -> Result<(), InvalidName> {
    let starts = name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic());
    let goes_on = name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
    if starts && goes_on && name.len() <= longest {
        return Ok(());
    }
    Err(InvalidName { longest })
}

/// A name for a schema or a table that cannot be used.
///
/// Names are ASCII letters, digits and underscores, and do not begin with a digit, so none can end the quotes that it is put
/// in. Postgres takes at most 63 bytes, and the names of the indexes are made from that of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "a schema or table is named with ASCII letters, digits and underscores, does not begin with a digit, and has 1 to {longest} bytes"
)]
#[non_exhaustive]
pub struct InvalidName {
    /// How long this name could have been, in bytes.
    pub longest: usize,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn names(schema: Option<&str>, table: Option<&str>) -> Result<Names, InvalidName> {
        let mut names = Names::default();
        if let Some(schema) = schema {
            names = names.in_schema(schema.to_owned())?;
        }
        if let Some(table) = table {
            names = names.of_table(table.to_owned())?;
        }
        Ok(names)
    }

    #[test]
    fn tables_are_qualified_and_indexes_are_not() {
        let names = names(Some("money"), Some("Keys")).unwrap();
        let sql = "CREATE INDEX idem_record_finished ON idem_record (x); INSERT INTO idem_record_migration";
        assert_eq!(
            names.apply(sql),
            "CREATE INDEX \"Keys_finished\" ON \"money\".\"Keys\" (x); INSERT INTO \"money\".\"Keys_migration\""
        );
    }

    #[test]
    fn the_default_is_found_by_the_search_path() {
        let names = Names::default();
        assert_eq!(names.apply("FROM idem_record"), "FROM \"idem_record\"");
        assert_eq!(names.display(), "idem_record");
    }

    #[test]
    fn names_that_could_end_their_quotes_or_are_cut_are_refused() {
        let long = "a".repeat(64);
        let nearly = "a".repeat(53);
        for bad in ["", "1a", "a b", "a\"b", "a.b", "a;b", "ä", "a\0", &long] {
            assert!(names(Some(bad), None).is_err(), "{bad:?}");
            assert!(names(None, Some(bad)).is_err(), "{bad:?}");
        }
        assert!(names(None, Some(&nearly)).is_err());
        assert!(names(Some(&long[..63]), Some(&nearly[..52])).is_ok());
    }
}
