//! Ids that are not exact.

use idem_core::{IdempotencyKey, RecordId, Scope};

use super::Saboteur;

/// The id with its two texts changed, or as it was if they are no id then.
fn with(id: &RecordId, scope: impl AsRef<str>, key: impl AsRef<str>) -> RecordId {
    match (Scope::new(scope), IdempotencyKey::new(key)) {
        (Ok(scope), Ok(key)) => RecordId::new(scope, key),
        _ => id.clone(),
    }
}

fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

pub(super) fn all() -> Vec<Saboteur> {
    vec![
        saboteur!(keys_without_case: "keeps keys in lower case" {
            fn folded(&self, id: &RecordId) -> RecordId {
                with(id, id.scope().as_str(), id.key().as_str().to_lowercase())
            }
        }),
        saboteur!(scopes_without_case: "keeps scopes in lower case" {
            fn folded(&self, id: &RecordId) -> RecordId {
                with(id, id.scope().as_str().to_lowercase(), id.key().as_str())
            }
        }),
        saboteur!(keys_are_trimmed: "keeps keys without the spaces around them" {
            fn folded(&self, id: &RecordId) -> RecordId {
                with(id, id.scope().as_str(), id.key().as_str().trim())
            }
        }),
        saboteur!(keys_are_padded: "compares keys as if they were padded with spaces" {
            fn folded(&self, id: &RecordId) -> RecordId {
                with(id, id.scope().as_str(), id.key().as_str().trim_end())
            }
        }),
        saboteur!(scopes_are_trimmed: "keeps scopes without the white space around them" {
            fn folded(&self, id: &RecordId) -> RecordId {
                with(id, id.scope().as_str().trim(), id.key().as_str())
            }
        }),
        saboteur!(keys_are_cut: "keeps the first 191 characters of keys" {
            fn folded(&self, id: &RecordId) -> RecordId {
                with(id, id.scope().as_str(), cut(id.key().as_str(), 191))
            }
        }),
        saboteur!(scopes_are_cut: "keeps the first 254 bytes of scopes" {
            fn folded(&self, id: &RecordId) -> RecordId {
                with(id, cut(id.scope().as_str(), 254), id.key().as_str())
            }
        }),
        saboteur!(scopes_are_ignored: "has one scope for everybody" {
            fn folded(&self, id: &RecordId) -> RecordId {
                with(id, "everybody", id.key().as_str())
            }
        }),
        saboteur!(scope_and_key_are_joined: "keeps scope and key as one text with a colon between" {
            fn folded(&self, id: &RecordId) -> RecordId {
                let joined = format!("{}:{}", id.scope().as_str(), id.key().as_str());
                with(id, joined, "joined")
            }
        }),
        saboteur!(scopes_are_normalised: "keeps scopes in a Unicode normal form" {
            fn folded(&self, id: &RecordId) -> RecordId {
                // As much of it as shows: composition of one letter, and a compatibility form.
                let scope = id.scope().as_str().replace("e\u{301}", "\u{e9}").replace('\u{fb01}', "fi");
                with(id, scope, id.key().as_str())
            }
        }),
        saboteur!(scopes_lose_what_is_invisible: "keeps scopes without characters that cannot be seen" {
            fn folded(&self, id: &RecordId) -> RecordId {
                let seen = |c: &char| !c.is_control() && !matches!(c, '\u{200b}' | '\u{feff}' | '\u{fe0f}' | '\u{202e}');
                with(id, id.scope().as_str().chars().filter(seen).collect::<String>(), id.key().as_str())
            }
        }),
        saboteur!(keys_are_numbers: "compares keys that are numbers as numbers" {
            fn folded(&self, id: &RecordId) -> RecordId {
                match id.key().as_str().parse::<f64>() {
                    Ok(number) => with(id, id.scope().as_str(), number.to_string()),
                    Err(_) => id.clone(),
                }
            }
        }),
        saboteur!(keys_are_patterns: "has a percent sign stand for anything" {
            fn folded(&self, id: &RecordId) -> RecordId {
                match id.key().as_str().split_once(['%', '_', '*']) {
                    Some((head, _)) => with(id, id.scope().as_str(), format!("{head}k")),
                    None => id.clone(),
                }
            }
        }),
        saboteur!(keys_are_unescaped: "decodes percent-encoded keys" {
            fn folded(&self, id: &RecordId) -> RecordId {
                with(id, id.scope().as_str(), id.key().as_str().replace("%41", "A").replace('+', " "))
            }
        }),
        saboteur!(stores_share_a_table: "ignores what tells two stores in one database apart" {
            fn isolates(&self) -> bool {
                false
            }
        }),
    ]
}
