//! Referential integrity: no flow or track exists without its nodes, and no node or token without its
//! tenant.
//!
//! A commit that creates a reference to a tenant or a node also writes that entry's `used` key. A
//! commit that removes the tenant or node expects the key to be unchanged since the search for
//! references found none. Of two such commits in parallel, the store rejects the later one, and its
//! author searches again.

use crate::record::key;
use crate::store::{Expect, Revision, Write};
use crate::view::View;
use hawser_model::Name;

/// Returns the writes that refer to the entry of that kind and name, written by `revision`. They
/// have to follow the write of the referring entry, so that a view that contains the `used` key
/// also contains that entry.
pub(crate) fn refer(kind: &str, name: &Name, revision: Revision, by: &Name) -> [Write; 2] {
    [
        Write::check(key::of(kind, name), Expect::Revision(revision)),
        Write::put(key::used(kind, name), by.as_str().as_bytes()),
    ]
}

/// Returns the writes that remove the entry written by `revision`, unless a reference was created
/// that this view does not contain.
pub(crate) fn remove(view: &View, kind: &str, name: &Name, revision: Revision) -> [Write; 2] {
    let used = key::used(kind, name);
    let known = view.used(&used).map_or(Expect::Absent, Expect::Revision);
    [
        Write::delete(key::of(kind, name)).when(Expect::Revision(revision)),
        Write::delete(used).when(known),
    ]
}
