//! Ids are exact: whatever differs is different, and whatever is different stays apart.

use idem_core::{ClaimOutcome, Expect, Transition};

use crate::bench::Bench;
use crate::failure::{CaseResult, Stop, ensure, failure};
use crate::moves::complete;
use crate::track::Track;
use crate::wish::Wish;

/// All these ids are claimed, and must be as many records; then each is finished with an answer of its own, some
/// are released, and the others are still what they were.
async fn stay_apart(bench: &Bench, ids: Vec<(String, String)>) -> CaseResult {
    let mut tracks: Vec<Track> = Vec::new();
    for (index, (scope, key)) in ids.iter().enumerate() {
        let place = || format!("scope {scope:?}, key {key:?}");
        let claim = Wish::new(scope, key).claim()?;
        let mut track = bench.track(claim.id());
        let outcome = track.claim(&claim).await;
        match outcome.map_err(|failure| failure.within(place()))? {
            ClaimOutcome::Won(_) => {}
            _ => return Err(failure!("{}: this id has not been claimed before", place()).into()),
        }
        let number = u32::try_from(index).unwrap_or_default();
        let owner = track.owner()?;
        track
            .apply(owner, &complete(number))
            .await
            .map_err(|failure| Stop::from(failure.within(place())))?;
        tracks.push(track);
    }
    for (track, (scope, key)) in tracks.iter_mut().zip(&ids) {
        track.check().await.map_err(|failure| {
            failure.within(format!("after the others, scope {scope:?}, key {key:?}"))
        })?;
    }
    Ok(())
}

fn in_one_scope(keys: &[&str]) -> Vec<(String, String)> {
    keys.iter()
        .map(|key| ("acct".to_owned(), (*key).to_owned()))
        .collect()
}

fn with_one_key(scopes: &[&str]) -> Vec<(String, String)> {
    scopes
        .iter()
        .map(|scope| ((*scope).to_owned(), "key".to_owned()))
        .collect()
}

pub(crate) async fn ids_with_case(bench: &mut Bench) -> CaseResult {
    let mut ids = in_one_scope(&["abc-K", "ABC-K", "Abc-K", "abc-k", "aBc-k"]);
    ids.extend(with_one_key(&[
        "abc",
        "ABC",
        "\u{130}stanbul",
        "istanbul",
        "ISTANBUL",
        "\u{131}stanbul",
        "stra\u{df}e",
        "strasse",
        "STRASSE",
        "\u{3a3}",
        "\u{3c3}",
        "\u{3c2}",
    ]));
    stay_apart(bench, ids).await
}

pub(crate) async fn ids_with_spaces(bench: &mut Bench) -> CaseResult {
    let mut ids = in_one_scope(&["k", " k", "k ", " k ", "  k", " ", "  ", "k k", "k  k"]);
    ids.extend(with_one_key(&[
        "s",
        " s",
        "s ",
        "\ts",
        "s\n",
        "s\r\n",
        "\u{a0}s",
        "s\u{200b}",
        "\u{feff}s",
        " ",
        "\u{3000}",
        "s\u{1}",
        "\u{7f}",
    ]));
    stay_apart(bench, ids).await
}

pub(crate) async fn ids_with_separators(bench: &mut Bench) -> CaseResult {
    let mut ids = Vec::new();
    for separator in [":", "/", "|", ",", "-", "_", ".", "#", "\u{1f}"] {
        let key = if separator == "\u{1f}" {
            ":"
        } else {
            separator
        };
        for (scope, key) in [
            (format!("a{separator}b"), format!("c{key}x")),
            (format!("a{separator}b{separator}c"), "x".to_owned()),
            ("a".to_owned(), format!("b{key}c{key}x")),
            (format!("{separator}a"), format!("b{key}c")),
            (format!("a{separator}"), format!("{key}b")),
        ] {
            ids.push((scope, key));
        }
    }
    for (scope, key) in [
        ("a", "bc"),
        ("ab", "c"),
        ("1", "11"),
        ("11", "1"),
        ("a\\", ":b"),
        ("a", "\\:b"),
        ("{a}", "b"),
        ("a", "{b}"),
    ] {
        ids.push((scope.to_owned(), key.to_owned()));
    }
    ids.sort();
    ids.dedup();
    stay_apart(bench, ids).await
}

pub(crate) async fn ids_with_unicode_forms(bench: &mut Bench) -> CaseResult {
    let ids = with_one_key(&[
        // Composed and decomposed; compatibility forms; what looks the same; invisible marks.
        "caf\u{e9}",
        "cafe\u{301}",
        "cafe",
        "\u{212b}",
        "\u{c5}",
        "A\u{30a}",
        "\u{fb01}",
        "fi",
        "\u{ff41}",
        "a",
        "\u{430}",
        "\u{3b1}",
        "\u{1d41a}",
        "\u{1f980}",
        "\u{1f980}\u{fe0f}",
        "e\u{301}\u{327}",
        "e\u{327}\u{301}",
        "\u{ac00}",
        "\u{1100}\u{1161}",
        "\u{10ffff}",
        "\u{e000}",
        "\u{ffff}",
        "\u{202e}a",
    ]);
    stay_apart(bench, ids).await
}

/// What means something to a database, a shell or a format is a text like any other.
pub(crate) async fn ids_with_meaning_elsewhere(bench: &mut Bench) -> CaseResult {
    let texts = [
        "1",
        "01",
        "1.0",
        "+1",
        "1e0",
        "0x1",
        "NULL",
        "null",
        "None",
        "true",
        "''",
        "'",
        "\"",
        "`",
        "\\",
        "\\\\",
        "%",
        "_",
        "*",
        "?",
        "k%",
        "k_",
        "k*",
        "kk",
        "'; DROP TABLE records; --",
        "${x}",
        "{}",
        "[]",
        "$1",
        ":1",
        "@p",
        "\\x41",
        "A",
        "&#65;",
        "%41",
        "+",
        "%20",
        "~",
        "!",
        "$a$",
        "E'a'",
        "\\0",
        "\\u0000",
    ];
    let mut ids = in_one_scope(&texts);
    ids.extend(with_one_key(&texts));
    stay_apart(bench, ids).await
}

pub(crate) async fn ids_of_full_length(bench: &mut Bench) -> CaseResult {
    let long = |end: &str| format!("{}{end}", "x".repeat(255 - end.len()));
    let mut ids = Vec::new();
    for length in [1, 31, 32, 63, 64, 127, 128, 191, 254, 255] {
        ids.push(("acct".to_owned(), "x".repeat(length)));
        ids.push(("x".repeat(length), "key".to_owned()));
    }
    for end in ["a", "b", "A", " "] {
        ids.push(("acct".to_owned(), long(end)));
        ids.push((long(end), "key".to_owned()));
        ids.push((long(end), long(end)));
    }
    // Characters of four bytes: 252 bytes of them and three more.
    for end in ["abc", "abd", "\u{20ac}"] {
        ids.push((format!("{}{end}", "\u{1f980}".repeat(63)), long("a")));
    }
    stay_apart(bench, ids).await
}

/// A key in one scope says nothing about the same key in another: neither to claims nor to writes.
pub(crate) async fn ids_in_other_scopes(bench: &mut Bench) -> CaseResult {
    let one = bench.wish();
    let mut other = one.clone().payload(7);
    other.scope = format!("{}-other", one.scope);
    let (first, second) = (one.claim()?, other.claim()?);
    let mut here = bench.track(first.id());
    let mut there = bench.track(second.id());
    here.claim(&first).await?;
    there.check().await?;
    // The owner here is nobody there.
    let owner = Expect::Owner(first.token());
    there.refuse(owner, &complete(1)).await?;
    there.claim(&second).await?;
    there.refuse(owner, &complete(1)).await?;
    here.apply(owner, &complete(1)).await?;
    there.check().await?;
    there
        .apply(Expect::Owner(second.token()), &Transition::Release)
        .await?;
    here.check().await?;
    Ok(())
}

/// Two stores in one database that are meant to have nothing in common.
pub(crate) async fn ids_in_another_store(bench: &mut Bench) -> CaseResult {
    let beside = bench.beside().await?;
    let wish = bench.wish().forgotten();
    let (first, second) = (wish.claim()?, wish.clone().payload(7).claim()?);
    let mut here = bench.track(first.id());
    let mut there = bench.track(second.id());
    there.through(&beside);
    here.claim(&first).await?;
    there.check().await?;
    there.claim(&second).await?;
    there
        .refuse(Expect::Owner(first.token()), &complete(1))
        .await?;
    here.apply(Expect::Owner(first.token()), &complete(1))
        .await?;
    there
        .apply(Expect::Owner(second.token()), &complete(2))
        .await?;
    bench.lapse(there.skew()).await?;
    let removed = beside.sweep_all(100).await?;
    ensure!(
        removed == 1,
        "a sweep of one store must remove its one expired record, and removed {removed}"
    );
    here.check().await?;
    there.swept();
    there.check().await?;
    Ok(())
}
