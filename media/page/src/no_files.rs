use crate::File;

/// Whether this program has the page.
pub const IS_BUILT: bool = false;

/// The files of the page.
pub(crate) const FILES: &[File] = &[];

/// Those that only the page of the demonstration has.
pub(crate) const DEMO_FILES: &[File] = &[];
