//! The number of files and sockets that this process may have open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io;

/// Raises the limit of open files to `needed`, or as far as the system allows; the usual limit is 1024.
/// Returns the limit that is then in force, which may be lower or higher than `needed`.
///
/// # Errors
/// If the kernel does not allow the change.
pub fn raise_limit(needed: u64) -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let limit = needed.min(hard);
    if soft >= limit {
        return Ok(soft);
    }
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard)?;
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_as_far_as_allowed_and_never_lowered() {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(raise_limit(1).unwrap(), soft);
        assert_eq!(raise_limit(u64::MAX).unwrap(), hard);
        let now = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(now, (hard, hard));
    }
}
