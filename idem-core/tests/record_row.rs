//! Records as columns: they come back whole, and a column that makes no sense is named.

#![expect(
    clippy::unwrap_used,
    reason = "this is all test code, also outside of the test functions"
)]

mod machine;

use bytes::Bytes;
use idem_core::{
    Claim, CorruptRow, Finish, Note, Operation, Policy, Record, RecordRow, Recovery, RecoveryPoint,
    Response, Span, State, Status,
};
use proptest::prelude::*;

use machine::{arbitrary, at, attempt, claim, request, response};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_record_comes_back_from_its_columns(record in arbitrary::record()) {
        let row = RecordRow::from(&record);
        prop_assert_eq!(Record::try_from(row.clone()), Ok(record));
    }
}

type Damage = fn(&mut RecordRow);

/// Every way in which a column can be out of its range, by column.
const OUT_OF_RANGE: &[(&str, &[Damage])] = &[
    (
        "operation",
        &[
            |row| row.operation.clear(),
            |row| row.operation.push('\0'),
            |row| row.operation = "x".repeat(Operation::MAX_BYTES + 1),
        ],
    ),
    (
        "fingerprint_encoding",
        &[
            |row| row.fingerprint_encoding = -1,
            |row| row.fingerprint_encoding = 0x1_0000,
            |row| row.fingerprint_encoding = i64::MAX,
        ],
    ),
    (
        "fingerprint_profile",
        &[
            |row| row.fingerprint_profile = -1,
            |row| row.fingerprint_profile = 0x1_0000,
            |row| row.fingerprint_profile = i64::MIN,
        ],
    ),
    (
        "fingerprint",
        &[
            |row| row.fingerprint.truncate(31),
            |row| row.fingerprint.push(0),
            |row| row.fingerprint.clear(),
        ],
    ),
    (
        "status",
        &[
            |row| row.status = "archived".to_owned(),
            |row| row.status.clear(),
            |row| row.status = "COMPLETED".to_owned(),
            |row| row.status.push(' '),
        ],
    ),
    (
        "origin",
        &[|row| row.origin.truncate(15), |row| row.origin.push(0)],
    ),
    (
        "token",
        &[|row| row.token.truncate(15), |row| row.token.push(0)],
    ),
    (
        "revision",
        &[|row| row.revision = -1, |row| row.revision = i64::MIN],
    ),
    (
        "attempt",
        &[
            |row| row.attempt = 0,
            |row| row.attempt = -1,
            |row| row.attempt = 0x1_0000_0000,
        ],
    ),
    (
        "reclaims",
        &[|row| row.reclaims = -1, |row| row.reclaims = 0x1_0000_0000],
    ),
    (
        "recovery_name",
        &[
            |row| row.recovery_name = None,
            |row| row.recovery_name = Some(String::new()),
            |row| row.recovery_name = Some("nul\0".to_owned()),
            |row| row.recovery_name = Some("x".repeat(RecoveryPoint::MAX_NAME_BYTES + 1)),
            // The four belong together, and the name stands for all of them.
            |row| row.recovery_attempt = None,
            |row| row.recovery_sequence = None,
            |row| {
                (row.recovery_name, row.recovery_attempt) = (None, None);
                row.recovery_sequence = None;
            },
        ],
    ),
    (
        "recovery_data",
        &[|row| {
            let data = vec![0; RecoveryPoint::MAX_DATA_BYTES + 1];
            row.recovery_data = Some(data.into());
        }],
    ),
    (
        "recovery_attempt",
        &[
            |row| row.recovery_attempt = Some(0),
            |row| row.recovery_attempt = Some(-1),
            |row| row.recovery_attempt = Some(0x1_0000_0000),
        ],
    ),
    (
        "recovery_sequence",
        &[
            |row| row.recovery_sequence = Some(-1),
            |row| row.recovery_sequence = Some(0x1_0000_0000),
        ],
    ),
    (
        "response_code",
        &[
            |row| row.response_code = Some(-1),
            |row| row.response_code = Some(0x1_0000),
            // The three belong together, and the code stands for all of them.
            |row| row.response_code = None,
            |row| row.response_headers = None,
            |row| (row.response_code, row.response_headers) = (None, None),
        ],
    ),
    (
        "response_headers",
        &[
            |row| row.response_headers = Some(Bytes::new()),
            |row| row.response_headers = Some(Bytes::from_static(b"\x02\0\0\0\0")),
            |row| row.response_headers = Some(Bytes::from_static(b"\x01\0\0\0\x01")),
            |row| row.response_headers = Some(Bytes::from_static(b"\x01\0\0\0\0\0")),
        ],
    ),
    (
        "contract",
        &[
            |row| row.contract = "whatever".to_owned(),
            |row| row.contract.clear(),
            |row| row.contract = "Hold".to_owned(),
        ],
    ),
    (
        "retention",
        &[
            |row| row.retention = -1,
            |row| row.retention = longest() + 1,
            |row| row.retention = i64::MAX,
        ],
    ),
    (
        "reclaim_window",
        &[
            |row| row.reclaim_window = -1,
            |row| row.reclaim_window = longest() + 1,
            |row| row.reclaim_window = i64::MAX,
        ],
    ),
    (
        "max_reclaims",
        &[
            |row| row.max_reclaims = -1,
            |row| row.max_reclaims = 0x1_0000_0000,
        ],
    ),
    (
        "expires_at",
        &[
            |row| row.expires_at = None,
            // The two belong together, and the expiry stands for both.
            |row| row.finished_at = None,
        ],
    ),
];

/// Columns that hold any value of their type, and `finished_at`, which is only there or not.
const ANY_VALUE: [&str; 9] = [
    "id",
    "uncertain",
    "response_body",
    "note",
    "created_at",
    "effect_since",
    "locked_at",
    "locked_until",
    "finished_at",
];

#[test]
fn a_column_out_of_its_range_is_named() {
    for (column, damages) in OUT_OF_RANGE {
        for (number, damage) in damages.iter().enumerate() {
            let mut row = whole_row();
            damage(&mut row);
            assert_ne!(row, whole_row(), "damage {number} of {column} is none");
            assert_eq!(
                Record::try_from(row),
                Err(CorruptRow::in_column(column)),
                "damage {number}"
            );
        }
    }
}

#[test]
fn every_column_is_among_those_that_are_tried() {
    let shown = format!("{:#?}", whole_row());
    let columns = shown
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| !line.starts_with([' ', '}', ')', ']']))
        .filter_map(|line| line.split_once(':'))
        .map(|(column, _)| column);
    let mut count = 0;
    for column in columns {
        let tried = OUT_OF_RANGE.iter().any(|(tried, _)| *tried == column);
        assert!(
            tried != ANY_VALUE.contains(&column),
            "`{column}` is a column that these tests do not know"
        );
        count += 1;
    }
    assert_eq!(count, OUT_OF_RANGE.len() + ANY_VALUE.len());
}

#[test]
fn an_id_that_is_none_is_named() {
    let long = "x".repeat(256);
    for scope in ["", "nul\0", &long] {
        assert_eq!(
            RecordRow::id(scope, "k-1"),
            Err(CorruptRow::in_column("scope"))
        );
    }
    for key in ["", "nul\0", "smörgås", "tab\t", &long] {
        assert_eq!(
            RecordRow::id("acct_1", key),
            Err(CorruptRow::in_column("key"))
        );
    }
}

/// The borders themselves are in range.
#[test]
fn the_largest_values_are_read() {
    let mut row = whole_row();
    row.operation = "x".repeat(Operation::MAX_BYTES);
    row.fingerprint_encoding = 0xffff;
    row.fingerprint_profile = 0xffff;
    row.revision = i64::MAX;
    row.attempt = 0xffff_ffff;
    row.reclaims = 0xffff_ffff;
    row.recovery_name = Some("x".repeat(RecoveryPoint::MAX_NAME_BYTES));
    row.recovery_data = Some(vec![0; RecoveryPoint::MAX_DATA_BYTES].into());
    row.recovery_attempt = Some(0xffff_ffff);
    row.recovery_sequence = Some(0xffff_ffff);
    row.response_code = Some(0xffff);
    row.retention = longest();
    row.reclaim_window = longest();
    row.max_reclaims = 0xffff_ffff;
    row.created_at = i64::MIN;
    row.effect_since = i64::MAX;
    row.locked_at = i64::MIN;
    row.locked_until = i64::MAX;
    row.finished_at = Some(i64::MIN);
    row.expires_at = Some(i64::MAX);
    let record = Record::try_from(row.clone()).unwrap();
    assert_eq!(RecordRow::from(&record), row);
}

/// Status, response and finish: of the sixteen combinations four are states.
#[test]
fn a_status_that_does_not_fit_the_other_columns_is_named() {
    for status in Status::ALL {
        for with_response in [false, true] {
            for with_finish in [false, true] {
                let mut row = whole_row();
                row.status = status.as_str().to_owned();
                if !with_response {
                    (row.response_code, row.response_headers) = (None, None);
                    row.response_body = None;
                }
                if !with_finish {
                    (row.finished_at, row.expires_at) = (None, None);
                }
                let fits = match status {
                    Status::InProgress => !with_response && !with_finish,
                    Status::Completed | Status::FailedFinal => with_response && with_finish,
                    Status::FailedRetryable => !with_response && with_finish,
                };
                match Record::try_from(row) {
                    Ok(record) => {
                        assert!(fits, "{record:?}");
                        assert_eq!(record.status(), status);
                    }
                    Err(error) => {
                        assert!(!fits, "{status} is whole");
                        assert_eq!(error.column, "status");
                    }
                }
            }
        }
    }
}

/// An empty body is a body, and an omitted one is not empty; likewise recovery data.
#[test]
fn nothing_and_empty_are_two_things() {
    for answer in [
        Response::new(204),
        Response::new(200).without_body(),
        Response::new(200).body(""),
    ] {
        for point in [
            machine::point("charged"),
            machine::point("charged").with_data("").unwrap(),
        ] {
            let mut record = whole_record();
            record.state = State::Completed {
                response: answer.clone(),
                finish: record.state.finish().unwrap(),
            };
            record.recovery = Some(Recovery {
                point,
                attempt: attempt(1),
                sequence: 0,
            });
            assert_eq!(Record::try_from(RecordRow::from(&record)), Ok(record));
        }
    }
}

fn longest() -> i64 {
    i64::try_from(Span::MAX.as_micros()).unwrap()
}

fn whole_row() -> RecordRow {
    RecordRow::from(&whole_record())
}

/// A record with a value in every column.
fn whole_record() -> Record {
    let claim: Claim = claim(1, request(1));
    assert_eq!(claim.terms(), Policy::default().terms());
    Record {
        uncertain: true,
        recovery: Some(Recovery {
            point: machine::point("charged").with_data("ch_1").unwrap(),
            attempt: attempt(1),
            sequence: 1,
        }),
        note: Some(Note::new("noted")),
        state: State::Completed {
            response: response(201),
            finish: Finish {
                finished_at: at(1),
                expires_at: at(2),
            },
        },
        ..claim.first_record(at(0))
    }
}
