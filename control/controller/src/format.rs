//! The format of the store, and its incarnation.
//!
//! Controllers that are one version apart read each other's records. A version whose records
//! earlier ones cannot read at all raises the number of the format.

use crate::record::{FormatRecord, decode, emit, key, random_hex};
use crate::store::{Error, Expect, Store, Write};
use anyhow::{Context, Result, bail};

/// The greatest format that this version reads, and the one that it writes.
const FORMAT: u32 = 1;

/// Returns why this version cannot read a store of that format, and what to do; `None` if it can.
pub(crate) fn fault(record: &FormatRecord) -> Option<String> {
    let FormatRecord { format, version } = record;
    (*format > FORMAT).then(|| {
        format!(
            "the store has the format {format} of Hawser {version}, this version reads up to {FORMAT}: \
             start that version or a later one, or restore a backup from before the update (docs/upgrade.md)"
        )
    })
}

/// Checks that this version can read the store. Writes format and incarnation into a new store.
///
/// # Errors
/// Returns an error if the store is of a later format or does not respond.
pub(crate) async fn check(store: &dyn Store) -> Result<()> {
    let record = FormatRecord {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
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
    let known = decode(&known.value).context("the format of the store cannot be read")?;
    match fault(&known) {
        Some(fault) => bail!(fault),
        None => Ok(()),
    }
}

/// Returns the write of a new incarnation.
pub(crate) fn new_incarnation() -> Write {
    Write::put(key::INCARNATION, emit(&random_hex::<16>()))
}
