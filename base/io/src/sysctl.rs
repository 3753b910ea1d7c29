//! Parameters of the kernel. Those under `net` are of the calling thread's network namespace.

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The value of [`reverse_path_filter`] with which the kernel drops packets that arrive by another
/// interface than the route back (Documentation/networking/ip-sysctl.rst).
pub const STRICT: u8 = 1;

/// The value with which it drops only packets from sources to which there is no route at all.
pub const LOOSE: u8 = 2;

/// Returns the value of a parameter such as `net.ipv4.ip_forward`.
pub fn read(key: &str) -> io::Result<String> {
    let file = Path::new("/proc/sys").join(key.replace('.', "/"));
    Ok(fs::read_to_string(file)?.trim().to_owned())
}

/// Returns the reverse path filter that is in force on an interface: the larger of its own and
/// that of all interfaces.
pub fn reverse_path_filter(interface: &str) -> u8 {
    let setting = |scope| own_reverse_path_filter(scope).unwrap_or(0);
    setting("all").max(setting(interface))
}

/// Returns the reverse path filter of one interface, or the one for `all`.
pub fn own_reverse_path_filter(interface: &str) -> io::Result<u8> {
    of_interface("rp_filter", interface)
}

/// Returns a parameter of IPv4 of one interface, or the one for `all`.
pub fn of_interface(parameter: &str, interface: &str) -> io::Result<u8> {
    let file = Path::new("/proc/sys/net/ipv4/conf")
        .join(interface)
        .join(parameter);
    fs::read_to_string(file)?
        .trim()
        .parse()
        .map_err(io::Error::other)
}

/// Sets the reverse path filter of an interface. This needs root or CAP_NET_ADMIN, and a `/proc/sys`
/// that is not mounted read-only.
pub fn set_reverse_path_filter(interface: &str, value: u8) -> io::Result<()> {
    fs::write(reverse_path_filter_file(interface), value.to_string())
}

/// An interface's name can contain dots, which the names of parameters separate.
fn reverse_path_filter_file(interface: &str) -> PathBuf {
    Path::new("/proc/sys/net/ipv4/conf")
        .join(interface)
        .join("rp_filter")
}

/// Returns whether parameters cannot be set because `/proc/sys` is mounted read-only, as in containers.
pub fn is_read_only() -> io::Result<bool> {
    let found = statvfs("/proc/sys")?;
    Ok(found.flags().contains(FsFlags::ST_RDONLY))
}

/// Returns whether an existing path is in a bpf file system.
pub fn is_in_bpf_file_system(path: &Path) -> io::Result<bool> {
    Ok(statfs(path)?.filesystem_type() == BPF_FS_MAGIC)
}

/// Returns the number of CPUs up to the last one that is online.
pub fn online_cpus() -> io::Result<u32> {
    let ranges = fs::read_to_string("/sys/devices/system/cpu/online")?;
    number_of_last(&ranges).ok_or_else(|| io::Error::other(format!("not a list of CPUs: {ranges}")))
}

/// Returns the number after the last one of a list such as `0-3,6`.
fn number_of_last(ranges: &str) -> Option<u32> {
    let last: u32 = ranges.trim().rsplit([',', '-']).next()?.parse().ok()?;
    last.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted_up_to_the_last_one_that_is_online() {
        for (ranges, cpus) in [("0\n", 1), ("0-3\n", 4), ("0,2-5,9\n", 10)] {
            assert_eq!(number_of_last(ranges), Some(cpus), "{ranges}");
        }
        assert_eq!(number_of_last(""), None);
        assert!(online_cpus().unwrap() >= 1);
    }

    #[test]
    fn parameters_are_read_without_their_line_end() {
        assert!(matches!(&*read("net.ipv4.ip_forward").unwrap(), "0" | "1"));
        assert!(read("net.ipv4.no_such_parameter").is_err());
        assert!(reverse_path_filter("lo") <= 2);
    }

    #[test]
    fn the_file_system_of_processes_is_not_one_for_bpf() {
        assert!(!is_in_bpf_file_system(Path::new("/proc")).unwrap());
        assert!(is_in_bpf_file_system(Path::new("/no/such/folder")).is_err());
    }
}
