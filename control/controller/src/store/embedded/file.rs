//! The database file: one table of entries, and one of numbers about the file.

use super::index::Stored;
use crate::store::{OpenError, Revision};
use hawser_io::file::open_or_create;
use redb::{
    Database, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition,
};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maps a key to the revision that wrote it and its value.
const ENTRIES: TableDefinition<&str, (u64, &[u8])> = TableDefinition::new("entries");

const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");

/// The greatest revision that may have been used. Not every revision is written to the file, but
/// none is used twice.
const REVISIONS: &str = "revisions";

/// The number of revisions that are reserved at a time.
const REVISIONS_AT_ONCE: u64 = 1 << 20;

/// The size of the database cache. Reads are served from memory, so it only holds what the writer
/// touches.
const CACHE_BYTES: usize = 32 << 20;

pub(super) type Entries = BTreeMap<Arc<str>, Stored>;

/// Rows to write; `None` removes the row.
pub(super) type Rows = BTreeMap<Arc<str>, Option<Stored>>;

pub(super) struct File {
    path: PathBuf,
    state: State,
    revisions: Revision,
}

enum State {
    Open(Database),
    /// A write failed for lack of space. Whether its content is in the file is unknown; redb
    /// requires the file to be reopened.
    Full,
    /// The disk failed, for this reason. Earlier writes may be in the kernel's memory and not on
    /// the disk. That cannot be detected, because the kernel reports the failure only once, so the
    /// file must not be used any further.
    Broken(String),
}

impl File {
    /// Opens the file. Returns it with its content and the revision to continue after.
    pub(super) fn open(path: &Path) -> Result<(File, Entries, Revision), OpenError> {
        let refused = |reason: String| OpenError::File {
            file: path.display().to_string(),
            reason,
        };
        let is_new = !path.exists();
        let database = open(path)?;
        if is_new {
            // The file survives a power failure only if its directory entry is on the disk.
            sync_directory(path).map_err(|e| refused(format!("its directory: {e}")))?;
        }
        let mut file = File {
            path: path.into(),
            state: State::Open(database),
            revisions: 0,
        };
        let (entries, revision) = file.read().map_err(&refused)?;
        file.write(&Rows::new(), revision).map_err(refused)?;
        Ok((file, entries, revision))
    }

    fn database(&self) -> Result<&Database, String> {
        match &self.state {
            State::Open(database) => Ok(database),
            State::Full => Err("the disk was full".into()),
            State::Broken(reason) => Err(format!(
                "{reason}; restart the controller to use this disk again"
            )),
        }
    }

    fn read(&self) -> Result<(Entries, Revision), String> {
        let transaction = self.database()?.begin_read().map_err(text)?;
        let numbers = match transaction.open_table(NUMBERS) {
            Ok(numbers) => numbers,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok((Entries::new(), 0)),
            Err(e) => return Err(text(e)),
        };
        let revisions = numbers.get(REVISIONS).map_err(text)?;
        let entries = read_entries(&transaction).map_err(text)?;
        Ok((entries, revisions.map_or(0, |number| number.value())))
    }

    /// Returns the greatest revision that may be used before the next [`write`](Self::write).
    pub(super) fn revisions(&self) -> Revision {
        self.revisions
    }

    /// Returns whether more revisions should be reserved, even if nothing else is to be written.
    pub(super) fn is_short_of_revisions(&self, revision: Revision) -> bool {
        revision + REVISIONS_AT_ONCE / 2 > self.revisions
    }

    /// Writes the rows and waits until they are on the disk. After an error it is unknown whether
    /// they are in the file.
    pub(super) fn write(&mut self, rows: &Rows, revision: Revision) -> Result<(), String> {
        let reserved = self
            .is_short_of_revisions(revision)
            .then(|| revision + REVISIONS_AT_ONCE);
        if let Err(e) = write(self.database()?, rows, reserved) {
            let reason = text(&e);
            self.state = if is_lack_of_room(&e) {
                State::Full
            } else {
                State::Broken(reason.clone())
            };
            return Err(reason);
        }
        self.revisions = reserved.unwrap_or(self.revisions);
        Ok(())
    }

    /// Reopens the file if the disk was full, and reverts changes that the failed write may have
    /// left in it, so that it matches the entries in memory.
    pub(super) fn recover<'a>(
        &mut self,
        durable: impl Iterator<Item = (&'a Arc<str>, &'a Stored)>,
    ) -> Result<(), String> {
        if !matches!(self.state, State::Full) {
            return Ok(());
        }
        self.state = State::Open(open(&self.path).map_err(text)?);
        let (mut in_file, revision) = self.read()?;
        let mut rows = Rows::new();
        for (key, stored) in durable {
            if in_file.remove(key).as_ref() != Some(stored) {
                rows.insert(key.clone(), Some(stored.clone()));
            }
        }
        rows.extend(in_file.into_keys().map(|key| (key, None)));
        if rows.is_empty() {
            Ok(())
        } else {
            self.write(&rows, revision)
        }
    }
}

/// Writes the directory that contains a file to the disk.
fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    std::fs::File::open(directory)?.sync_all()
}

fn read_entries(transaction: &ReadTransaction) -> Result<Entries, redb::Error> {
    let mut entries = Entries::new();
    for row in transaction.open_table(ENTRIES)?.iter()? {
        let (key, row) = row?;
        let (revision, value) = row.value();
        let stored = Stored {
            value: value.into(),
            revision,
            lease: None,
        };
        entries.insert(key.value().into(), stored);
    }
    Ok(entries)
}

fn write(database: &Database, rows: &Rows, reserved: Option<Revision>) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut entries = transaction.open_table(ENTRIES)?;
        for (key, row) in rows {
            match row {
                Some(row) => entries.insert(&**key, (row.revision, &*row.value))?,
                None => entries.remove(&**key)?,
            };
        }
        if let Some(reserved) = reserved {
            let mut numbers = transaction.open_table(NUMBERS)?;
            numbers.insert(REVISIONS, reserved)?;
        }
    }
    Ok(transaction.commit()?)
}

fn is_lack_of_room(error: &redb::Error) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error, redb::Error::Io(e) if matches!(e.kind(), StorageFull | QuotaExceeded | FileTooLarge))
}

fn open(path: &Path) -> Result<Database, OpenError> {
    let refused = |reason: String| OpenError::File {
        file: path.display().to_string(),
        reason,
    };
    let file = open_or_create(path, 0o600).map_err(|e| refused(e.to_string()))?;
    match redb::Builder::new()
        .set_cache_size(CACHE_BYTES)
        .create_file(file)
    {
        Ok(database) => Ok(database),
        Err(DatabaseError::DatabaseAlreadyOpen) => {
            Err(OpenError::InUse(path.display().to_string()))
        }
        Err(e) => Err(refused(e.to_string())),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
