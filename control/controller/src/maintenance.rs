//! Changes to a store from the command line of the controller, which can open it.

use crate::audit::Origin;
use crate::authority::write_private;
use crate::config::Config;
use crate::controller::About;
use crate::format;
use crate::record::{TokenRecord, key};
use crate::server::{FIRST_TOKEN_FILE, first_token, open_store};
use crate::store::{Expect, Store, Write};
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::sync::Arc;

/// The author of changes from the command line, in the audit log.
const AUTHOR: &str = "command line";

/// Gives a store that was restored from a backup a new incarnation.
///
/// # Errors
/// Returns an error if the store cannot be used.
pub(crate) async fn mark_restored(config: &Config) -> Result<()> {
    let store = used_store(config).await?;
    let known = store.get(key::INCARNATION).await?;
    let by = Origin::controller(AUTHOR);
    let by = match known {
        Some(known) => by.changes(key::INCARNATION, known.revision),
        None => by.makes(key::INCARNATION),
    };
    let message = "the store was restored from a backup; nodes discard later policies".to_owned();
    let writes = vec![format::new_incarnation()];
    let about = About::default().by(by);
    commit(&*store, writes, about, "store_restored", message).await
}

/// Replaces the first operator's token, or creates it again. Returns the file with its secret.
///
/// # Errors
/// Returns an error if the store cannot be used or the file cannot be written.
pub(crate) async fn new_admin_token(config: &Config) -> Result<PathBuf> {
    let store = used_store(config).await?;
    let issued = first_token();
    let name = &issued.token.name;
    let known = store.get(&key::of(key::TOKEN, name)).await?;
    let by = Origin::controller(AUTHOR);
    let (read, by) = match &known {
        Some(known) => {
            let read = Expect::Revision(known.revision);
            (read, by.changes(name, known.revision))
        }
        None => (Expect::Absent, by.makes(name)),
    };
    let writes = vec![TokenRecord::put(&issued).when(read)];
    let message = format!("the token {name} was replaced from the command line");
    let about = About::default().by(by);
    commit(&*store, writes, about, "token_replaced", message).await?;
    // If this fails, the command can be repeated.
    let file = config.state.join(FIRST_TOKEN_FILE);
    write_private(&file, &format!("{}\n", issued.secret))?;
    Ok(file)
}

/// Opens a store that a controller has used before.
async fn used_store(config: &Config) -> Result<Arc<dyn Store>> {
    let store = open_store(config).await?;
    let is_used = store.get(key::AUTHORITY).await?.is_some();
    ensure!(
        is_used,
        "no controller has used this store yet: check `state` and `store` in the configuration"
    );
    format::check(&*store).await?;
    Ok(store)
}

async fn commit(
    store: &dyn Store,
    mut writes: Vec<Write>,
    about: About,
    kind: &str,
    message: String,
) -> Result<()> {
    let audit = about.document(&mut writes, kind, message);
    let revision = store.commit(writes).await.context("nothing was changed")?;
    if let Some(audit) = audit {
        audit.log(revision);
    }
    Ok(())
}
