//! No flow exists without its nodes, and no node or token without its tenant.
//!
//! A commit that creates something with a reference to a tenant or a node also writes the `used` key of that one. The commit
//! that removes the tenant or the node expects the key to be unchanged since nothing was found to refer to it. Of two such
//! commits in parallel the store refuses the later one, and its author searches again.

use crate::record::key;
use crate::store::{Expect, Revision, Write};
use crate::view::View;
use hawser_control::Name;

/// Refers to the entry of that kind and name, which `revision` wrote. These writes follow the write of the referring entry,
/// so that a view with the `used` key also has that entry.
pub(crate) fn refer(kind: &str, name: &Name, revision: Revision, by: &Name) -> [Write; 2] {
    [
        Write::check(key::of(kind, name), Expect::Revision(revision)),
        Write::put(key::used(kind, name), by.as_str().as_bytes()),
    ]
}

/// Removes the entry that `revision` wrote, unless a reference was created that this view does not have.
pub(crate) fn remove(view: &View, kind: &str, name: &Name, revision: Revision) -> [Write; 2] {
    let used = key::used(kind, name);
    let known = view.used(&used).map_or(Expect::Absent, Expect::Revision);
    [
        Write::delete(key::of(kind, name)).when(Expect::Revision(revision)),
        Write::delete(used).when(known),
    ]
}
