//! The format of the store, and its incarnation.
//!
//! All controllers of a store have the same format. A change of the records raises its number.

use crate::record::{FormatRecord, decode, emit, key, random_hex};
use crate::store::{Error, Expect, Store, Write};
use anyhow::{Context, Result, ensure};

/// The format of the records.
const FORMAT: u32 = 1;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Checks that the store has this format. Writes format and incarnation into a new store.
///
/// # Errors
/// Returns an error if the store has another format or does not respond.
pub(crate) async fn check(store: &dyn Store) -> Result<()> {
    let record = FormatRecord {
        format: FORMAT,
        version: VERSION.to_owned(),
    };
    let writes = vec![
        Write::put(key::FORMAT, emit(&record)).when(Expect::Absent),
        new_incarnation().when(Expect::Absent),
    ];
    match store.commit(writes).await {
        Ok(_) => return Ok(()),
        Err(Error::Conflict { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let known = store.get(key::FORMAT).await?;
    let known = known.context("the store has an incarnation and no format: it is damaged")?;
    let known: FormatRecord =
        decode(&known.value).context("the format of the store cannot be read")?;
    ensure!(
        known.format == FORMAT,
        "the store has the format {} of Hawser {}, and this is Hawser {VERSION} with the format {FORMAT}: \
         start that version, or restore a backup of this one (docs/upgrade.md)",
        known.format,
        known.version,
    );
    Ok(())
}

/// Returns the write of a new incarnation.
pub(crate) fn new_incarnation() -> Write {
    Write::put(key::INCARNATION, emit(&random_hex::<16>()))
}
