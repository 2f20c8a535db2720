use std::path::{Path, PathBuf};

use idem_sqlite::SqliteKeyStore;

use super::paper::{Ink, Paper};
use super::schema::until_stopped;
use super::{DemoError, Ending, Process};
use crate::service::Database;

/// Runs a provider and a service until Ctrl-C, and prints commands to try.
///
/// # Errors
///
/// [`DemoError`] when one of the two cannot be started, or ends by itself.
pub async fn serve(store: Option<Database>, redis: Option<String>) -> Result<Ending, DemoError> {
    let (postgres, kept) = match store {
        Some(Database::Postgres { url, .. }) => (Some(url), None),
        Some(Database::Sqlite(path)) => (None, Some(path)),
        None => (None, None),
    };
    let served = async |schema: Option<Database>| {
        let temporary = tempfile::Builder::new().prefix("charges-demo-").tempdir()?;
        if let Some(path) = &kept {
            try_open(path).await?;
        }
        let file = match &kept {
            Some(path) => path.clone(),
            None => temporary.path().join("records.db"),
        };
        let mut ledger = file.clone().into_os_string();
        ledger.push(".ledger.jsonl");
        let records = schema.unwrap_or(Database::Sqlite(file));
        let program = std::env::current_exe()?.into_os_string();
        let mut provider = Process::start(
            program.clone(),
            "provider",
            vec!["--ledger".into(), ledger.clone()],
        )
        .await?;
        let mut arguments = vec![
            "--provider".into(),
            provider.url().into(),
            "--lease".into(),
            "5s".into(),
            "--provider-timeout".into(),
            "1s".into(),
        ];
        arguments.extend(records.arguments());
        if let Some(redis) = redis {
            arguments.extend(["--redis".into(), redis.into()]);
        }
        let mut service = Process::start(program, "service", arguments).await?;
        let paper = Paper::on_standard_output();
        print(&paper, &service, &provider);
        paper.line(format_args!("    records   {records}"));
        paper.line(format_args!(
            "    ledger    {}",
            PathBuf::from(ledger).display()
        ));
        paper.blank();
        paper.say(match kept {
            Some(_) => "Ctrl-C ends it. Both are kept.",
            None => "Ctrl-C ends it and removes both.",
        });
        paper.check()?;
        tokio::select! {
            ended = service.ends() => ended,
            ended = provider.ends() => ended,
        }
    };
    until_stopped(postgres, Ending::Good, served).await
}

/// The ledger lies beside the store, and the provider that opens it starts first. A path that is no good should
/// be called what its user calls it.
async fn try_open(path: &Path) -> Result<(), DemoError> {
    match SqliteKeyStore::open(path).await {
        Ok(store) => {
            store.close().await;
            Ok(())
        }
        Err(source) => Err(DemoError::Store {
            path: path.to_owned(),
            source,
        }),
    }
}

fn print(paper: &Paper, service: &Process, provider: &Process) {
    let url = service.url();
    paper.title("The service runs. Try it:");
    paper.blank();
    let command = |comment: &str, text: &str| {
        paper.line(paper.ink(Ink::Dim, format_args!("# {comment}")));
        paper.line(text);
        paper.blank();
    };
    let charge = |key: &str, amount: &str, source: &str| {
        format!(
            "curl -i {url}/v1/charges -H 'Authorization: Bearer sk_test_acme' \\\n  \
             -H 'Idempotency-Key: {key}' -d amount={amount} -d currency=eur -d source={source}"
        )
    };
    command(
        "Charge a card. Then send the same line again: one charge, the same answer.",
        &charge("order-1", "2500", "tok_visa"),
    );
    command(
        "The same key with another amount: 422.",
        &charge("order-1", "2600", "tok_visa"),
    );
    command(
        "The same key of another customer, in JSON: a charge of its own.",
        &format!(
            "curl -i {url}/v1/charges -H 'Authorization: Bearer sk_test_globex' \\\n  \
             -H 'Idempotency-Key: order-1' -H 'Content-Type: application/json' \\\n  \
             -d '{{\"amount\": 2500, \"currency\": \"eur\", \"source\": \"tok_visa\"}}'"
        ),
    );
    command(
        "A provider that charges and answers too late: 504, then 409 while the lease of 5 s lasts, then 201.",
        &charge("order-2", "1900", "tok_slow"),
    );
    command(
        "A refund. Other cards: tok_declined, tok_busy, tok_unhurried.",
        &format!(
            "curl -i {url}/v1/refunds -H 'Authorization: Bearer sk_test_acme' \\\n  \
             -H 'Idempotency-Key: refund-1' -d charge=ch_0001"
        ),
    );
    paper.line(format_args!("    service   {url}"));
    paper.line(format_args!("    provider  {}", provider.url()));
}
