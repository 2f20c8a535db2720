//! Columns that do not keep what was put into them.

use bytes::Bytes;
use idem_core::{
    Body, Fingerprint, Headers, Note, Operation, OwnerToken, Profile, Record, RecoveryPoint,
    Response, Revision, Scheme, Span, State, Timestamp, Transition,
};

use super::Saboteur;

/// Changes the stored answer, if there is one.
fn answer(record: &mut Record, change: impl Fn(u16, Headers, Body) -> (u16, Headers, Body)) {
    if let State::Completed { response, .. } | State::FailedFinal { response, .. } =
        &mut record.state
    {
        let (code, headers, body) = response.clone().into_parts();
        let (code, headers, body) = change(code, headers, body);
        *response = Response::from_parts(code, headers, body);
    }
}

fn body(record: &mut Record, change: impl Fn(Bytes) -> Body) {
    answer(record, |code, headers, body| {
        let body = match body {
            Body::Bytes(bytes) => change(bytes),
            Body::Omitted => Body::Omitted,
        };
        (code, headers, body)
    });
}

fn headers(record: &mut Record, change: impl Fn(Vec<(Bytes, Bytes)>) -> Vec<(Bytes, Bytes)>) {
    answer(record, |code, headers, body| {
        let lines = headers
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        (code, change(lines).into_iter().collect(), body)
    });
}

fn lossy(bytes: &Bytes) -> Bytes {
    String::from_utf8_lossy(bytes).into_owned().into()
}

fn whole_seconds(span: Span) -> Span {
    Span::from_micros(span.as_micros() / 1_000_000 * 1_000_000).unwrap_or(span)
}

/// A saboteur that changes records on their way into the database.
macro_rules! column {
    ($name:ident: $breaks:literal, $change:expr) => {
        saboteur!($name: $breaks {
            fn written(&self, record: &mut Record, _: Option<&Record>, _: Option<&Transition>) {
                let change: fn(&mut Record) = $change;
                change(record);
            }
        })
    };
}

pub(super) fn all() -> Vec<Saboteur> {
    vec![
        column!(headers_are_merged: "merges header lines of one name", |record| headers(record, |lines| {
            let mut merged: Vec<(Bytes, Bytes)> = Vec::new();
            for (name, value) in lines {
                match merged.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, known)) => *known = [known.as_ref(), b", ", value.as_ref()].concat().into(),
                    None => merged.push((name, value)),
                }
            }
            merged
        })),
        column!(headers_lose_repeats: "keeps the last header line of each name", |record| headers(record, |lines| {
            let last = |index: usize| lines[index + 1..].iter().all(|(name, _)| *name != lines[index].0);
            (0..lines.len()).filter(|index| last(*index)).map(|index| lines[index].clone()).collect()
        })),
        column!(headers_in_lower_case: "keeps header names in lower case", |record| headers(record, |lines| {
            lines.into_iter().map(|(name, value)| (name.to_ascii_lowercase().into(), value)).collect()
        })),
        column!(headers_are_sorted: "keeps header lines in the order of their names", |record| headers(record, |mut lines| {
            lines.sort_by(|one, other| one.0.cmp(&other.0));
            lines
        })),
        column!(header_values_are_text: "keeps header values as text", |record| headers(record, |lines| {
            lines.into_iter().map(|(name, value)| (name, lossy(&value))).collect()
        })),
        column!(header_values_are_trimmed: "keeps header values without the spaces around them", |record| headers(record, |lines| {
            lines.into_iter().map(|(name, value)| (name, value.trim_ascii().to_vec().into())).collect()
        })),
        column!(headers_are_cut: "keeps a hundred header lines", |record| headers(record, |mut lines| {
            lines.truncate(100);
            lines
        })),
        column!(bodies_are_text: "keeps bodies as text", |record| body(record, |bytes| Body::Bytes(lossy(&bytes)))),
        column!(bodies_are_json: "keeps bodies that are JSON in a JSON column", |record| body(record, |bytes| {
            match serde_json::from_slice::<serde_json::Value>(&bytes) {
                Ok(value) => Body::Bytes(value.to_string().into()),
                Err(_) => Body::Bytes(bytes),
            }
        })),
        column!(bodies_end_at_a_nul: "keeps bodies up to their first NUL", |record| body(record, |bytes| {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            Body::Bytes(bytes.slice(..end))
        })),
        column!(bodies_are_cut: "keeps the first 64 KiB of a body", |record| body(record, |bytes| {
            Body::Bytes(bytes.slice(..bytes.len().min(65_535)))
        })),
        column!(empty_bodies_are_omitted: "takes an empty body for none", |record| body(record, |bytes| {
            if bytes.is_empty() { Body::Omitted } else { Body::Bytes(bytes) }
        })),
        column!(omitted_bodies_are_empty: "takes an omitted body for an empty one", |record| {
            answer(record, |code, headers, body| {
                (code, headers, Body::Bytes(body.bytes().cloned().unwrap_or_default()))
            });
        }),
        column!(codes_are_known: "keeps status codes from 100 to 599", |record| {
            answer(record, |code, headers, body| (code.clamp(100, 599), headers, body));
        }),
        column!(failures_are_500: "keeps every failure as 500", |record| {
            if let State::FailedFinal { response, .. } = &mut record.state {
                *response = Response::new(500);
            }
        }),
        column!(operations_are_upper_case: "keeps operations in upper case", |record| {
            if let Ok(operation) = Operation::new(record.operation.as_str().to_uppercase()) {
                record.operation = operation;
            }
        }),
        column!(operations_are_cut: "keeps the first 255 bytes of an operation", |record| {
            let text = record.operation.as_str();
            if let Ok(operation) = Operation::new(&text[..text.floor_char_boundary(255)]) {
                record.operation = operation;
            }
        }),
        column!(schemes_are_forgotten: "keeps fingerprints without their profile", |record| {
            let scheme = Scheme::new(record.fingerprint.scheme().encoding(), Profile::new(1));
            record.fingerprint = Fingerprint::from_parts(scheme, *record.fingerprint.digest());
        }),
        column!(fingerprints_are_cut: "keeps half of a fingerprint", |record| {
            let mut digest = *record.fingerprint.digest();
            digest[16..].fill(0);
            record.fingerprint = Fingerprint::from_parts(record.fingerprint.scheme(), digest);
        }),
        column!(notes_are_cut: "keeps the first 255 bytes of a note", |record| {
            record.note = record.note.take().map(|note| {
                Note::new(&note.as_str()[..note.as_str().floor_char_boundary(255)])
            });
        }),
        column!(empty_notes_are_none: "takes an empty note for none", |record| {
            record.note = record.note.take().filter(|note| !note.as_str().is_empty());
        }),
        column!(tokens_are_text: "keeps tokens as text that ends at a NUL", |record| {
            let mut bits = *record.token.as_bytes();
            let end = bits.iter().position(|byte| *byte == 0).unwrap_or(bits.len());
            bits[end..].fill(0);
            record.token = OwnerToken::from_bytes(bits);
        }),
        column!(recovery_data_is_text: "keeps recovery data as text", |record| {
            if let Some(recovery) = &mut record.recovery
                && let Some(data) = recovery.point.data().map(lossy)
                && let Ok(point) = RecoveryPoint::new(recovery.point.name()).and_then(|point| point.with_data(data))
            {
                recovery.point = point;
            }
        }),
        column!(empty_recovery_data_is_none: "takes empty recovery data for none", |record| {
            if let Some(recovery) = &mut record.recovery
                && recovery.point.data().is_some_and(Bytes::is_empty)
                && let Ok(point) = RecoveryPoint::new(recovery.point.name())
            {
                recovery.point = point;
            }
        }),
        column!(spans_are_whole_seconds: "keeps durations in whole seconds", |record| {
            record.terms.retention = whole_seconds(record.terms.retention);
            record.terms.reclaim_window = whole_seconds(record.terms.reclaim_window);
        }),
        column!(times_are_milliseconds: "keeps instants in milliseconds", |record| {
            let cut = |at: Timestamp| Timestamp::from_micros(at.as_micros() / 1000 * 1000);
            record.locked_at = cut(record.locked_at);
            record.locked_until = cut(record.locked_until);
        }),
        column!(leases_overflow: "keeps the end of a lease in 32 bits of seconds", |record| {
            let limit = Timestamp::from_micros(i64::from(i32::MAX) * 1_000_000);
            record.locked_until = record.locked_until.min(limit);
        }),
        column!(retentions_overflow: "keeps the end of a retention in 32 bits of seconds", |record| {
            let limit = Timestamp::from_micros(i64::from(i32::MAX) * 1_000_000);
            if let State::Completed { finish, .. } = &mut record.state {
                finish.expires_at = finish.expires_at.min(limit);
            }
        }),
        column!(reclaims_are_small: "keeps the maximum of reclaims in 31 bits", |record| {
            record.terms.max_reclaims = record.terms.max_reclaims.min(i32::MAX.unsigned_abs());
        }),
        column!(sequences_are_small: "keeps checkpoint numbers in 16 bits", |record| {
            if let Some(recovery) = &mut record.recovery {
                recovery.sequence &= 0xffff;
            }
        }),
        column!(revisions_are_small: "keeps revisions in eight bits", |record| {
            record.revision = Revision::new(record.revision.as_u64() & 0xff);
        }),
        column!(codes_of_the_finish_only: "does not keep why a retryable failure failed", |record| {
            if let State::FailedRetryable { .. } = record.state {
                record.note = None;
            }
        }),
        column!(zero_leases_are_infinite: "takes a lease of zero for one without end", |record| {
            if record.locked_until == record.locked_at {
                record.locked_until = record.locked_at + Span::MAX;
            }
        }),
        column!(zero_retentions_are_infinite: "takes a retention of zero for one without end", |record| {
            if record.terms.retention.is_zero() {
                record.terms.retention = Span::MAX;
            }
        }),
    ]
}
