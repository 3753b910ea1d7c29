//! Reads the facts of this machine. Nothing here decides.

mod kept;
mod ports;
mod way;

pub(crate) use way::peer;

use crate::facts::{Fact, Facts, InterfaceFacts, PortFacts};
use crate::plan::Plan;
use hawser_io::interface::{self, Described};
use hawser_io::{clock, netlink, sysctl};
use nix::errno::Errno;
use nix::unistd::{AccessFlags, eaccess};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Reads everything but the peer, of the calling thread's network namespace.
pub(crate) fn read(plan: &Plan) -> Facts {
    let all = interface::all().map_err(|error| error.to_string());
    let is_missing = |name: &&String| {
        all.as_ref()
            .is_ok_and(|all| all.iter().all(|interface| interface.name != **name))
    };
    let missing_interfaces = plan.interfaces.iter().filter(is_missing).cloned();
    let holders = ports::Holders::read();
    let status = plan.status.as_deref().map(status_of).unwrap_or_default();
    Facts {
        kernel: kernel(),
        has_btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
        has_bpf_file_system: sysctl::is_in_bpf_file_system(Path::new("/sys/fs/bpf"))
            .map_err(|error| error.to_string()),
        has_tun: is_usable(Path::new("/dev/net/tun")),
        has_ethtool: is_in_path("ethtool"),
        has_nft: is_in_path("nft"),
        capabilities: capabilities(),
        missing_interfaces: missing_interfaces.collect(),
        interfaces: all.clone().map(|all| interfaces(all, &plan.interfaces)),
        default_routes: file("/proc/thread-self/net/route").map(|routes| default_routes(&routes)),
        forwarding: ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"]
            .map(|key| (key, parameter(key).map(|value| value != "0")))
            .into(),
        buffers: ["net.core.rmem_max", "net.core.wmem_max"]
            .map(|key| {
                let bytes = parameter(key)
                    .and_then(|value| value.parse().map_err(|_| format!("\"{value}\"")));
                (key, bytes)
            })
            .into(),
        is_proc_read_only: sysctl::is_read_only().map_err(|error| error.to_string()),
        firewalld: firewalld(),
        kept: kept::read(plan),
        has_fq: has_fq(),
        is_synchronized: clock::is_synchronized().map_err(|error| error.to_string()),
        ports: plan
            .ports
            .iter()
            .map(|port| PortFacts {
                port: *port,
                holder: holders.of(port),
            })
            .collect(),
        wanted_xdp: plan.xdp,
        unused_paths: unused_paths(&status),
        deviations: deviations(&status),
        peer: None,
    }
}

/// Reads the status of an agent. Nothing if the agent does not run or this user may not read the file:
/// `hawser status` says so.
fn status_of(file: &Path) -> Value {
    let text = fs::read_to_string(file).unwrap_or_default();
    let status: Value = serde_json::from_str(&text).unwrap_or_default();
    let written = status["written_unix_ms"].as_u64().unwrap_or_default();
    match hawser_service::is_stale(written, clock::unix_ms()) {
        true => Value::Null,
        false => status,
    }
}

/// Returns what an agent needs in the kernel and cannot restore, by name.
fn deviations(status: &Value) -> BTreeMap<String, String> {
    let all = status["deviations"].as_array().into_iter().flatten();
    let present = all.filter(|found| found["restored"] == Value::Bool(false));
    let named =
        present.filter_map(|found| Some((found["name"].as_str()?, found["what"].as_str()?)));
    named
        .map(|(name, what)| (name.to_owned(), what.to_owned()))
        .collect()
}

/// Returns the paths that an agent does not use.
fn unused_paths(status: &Value) -> BTreeMap<String, String> {
    let paths = status["paths"].as_object().into_iter().flatten();
    let unused = paths.filter(|(_, state)| state["up"] == Value::Bool(false));
    let reason = |state: &Value| {
        state["reason"]
            .as_str()
            .unwrap_or("not checked yet")
            .to_owned()
    };
    unused
        .map(|(path, state)| (path.clone(), reason(state)))
        .collect()
}

fn file(path: &str) -> Fact<String> {
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}

fn parameter(key: &str) -> Fact<String> {
    sysctl::read(key).map_err(|error| error.to_string())
}

/// Returns whether a device exists, without opening it, which would load its driver.
fn is_usable(device: &Path) -> Fact<bool> {
    match eaccess(device, AccessFlags::R_OK | AccessFlags::W_OK) {
        Ok(()) => Ok(true),
        Err(Errno::ENOENT) => Ok(false),
        Err(error) => Err(error.desc().to_owned()),
    }
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|folder| folder.join(program));
    files.any(|file| eaccess(&file, AccessFlags::X_OK).is_ok())
}

fn kernel() -> Fact<(u32, u32)> {
    let release = parameter("kernel.osrelease")?;
    version(&release).ok_or_else(|| format!("The kernel has the strange version \"{release}\"."))
}

/// Returns major and minor version of a release such as `6.1.0-49-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn capabilities() -> Fact<u64> {
    effective(&file("/proc/thread-self/status")?)
        .ok_or_else(|| "/proc/self/status has no CapEff.".to_owned())
}

fn effective(status: &str) -> Option<u64> {
    let mut masks = status
        .lines()
        .filter_map(|line| line.strip_prefix("CapEff:"));
    u64::from_str_radix(masks.next()?.trim(), 16).ok()
}

/// Returns whether to check an interface: one of `named`, or, if there is none, any but the loopback
/// interface and those that Hawser makes, which have the defaults of its configuration as names.
fn is_wanted(interface: &Described, named: &[String]) -> bool {
    match named.is_empty() {
        true => !interface.is_loopback && !interface.name.starts_with("hawser"),
        false => named.contains(&interface.name),
    }
}

/// Returns the facts of the interfaces that are wanted.
fn interfaces(all: Vec<Described>, named: &[String]) -> Vec<InterfaceFacts> {
    let has_vlans = |number| all.iter().any(|other| other.is_vlan_on(number));
    let wanted = all.iter().filter(|interface| is_wanted(interface, named));
    wanted
        .cloned()
        .map(|interface| InterfaceFacts {
            has_vlans: has_vlans(interface.index),
            is_named: !named.is_empty(),
            xdp: netlink::xdp_features(interface.index).map_err(|error| error.to_string()),
            offloads: netlink::offloads(interface.index).map_err(|error| error.to_string()),
            reverse_path_filter: sysctl::reverse_path_filter(&interface.name),
            interface,
        })
        .collect()
}

/// Returns the number of interfaces with a default route, from the content of `/proc/net/route`.
fn default_routes(routes: &str) -> usize {
    let interfaces = routes.lines().skip(1).filter_map(|line| {
        let fields = line.split_whitespace().collect::<Vec<_>>();
        let [interface, "00000000", ..] = *fields.as_slice() else {
            return None;
        };
        (*fields.get(7)? == "00000000").then(|| interface.to_owned())
    });
    interfaces.collect::<BTreeSet<_>>().len()
}

/// Returns the reverse path filter of firewalld, if it runs.
fn firewalld() -> Option<Fact<String>> {
    let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let mut names =
        processes.filter_map(|process| fs::read_to_string(process.path().join("comm")).ok());
    let runs = names.any(|name| name.trim() == "firewalld");
    runs.then(|| file("/etc/firewalld/firewalld.conf").map(|text| reverse_path_filter(&text)))
}

/// Returns the value of `IPv6_rpfilter` in firewalld's configuration.
fn reverse_path_filter(text: &str) -> String {
    let mut values = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("IPv6_rpfilter="));
    values.next_back().unwrap_or("strict").trim().to_lowercase()
}

/// Returns whether the kernel has the queueing discipline `fq`, loaded, built in, or as a module.
fn has_fq() -> Fact<bool> {
    if Path::new("/sys/module/sch_fq").exists() {
        return Ok(true);
    }
    let folder = format!("/lib/modules/{}", parameter("kernel.osrelease")?);
    let lists = ["modules.builtin", "modules.dep"].map(|name| file(&format!("{folder}/{name}")));
    if lists
        .iter()
        .flatten()
        .any(|list| list.contains("/sch_fq.ko"))
    {
        return Ok(true);
    }
    match lists.into_iter().collect::<Fact<Vec<_>>>() {
        Ok(_) => Ok(false),
        Err(reason) => Err(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_releases() {
        assert_eq!(version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(version("6.1.0-49-amd64"), Some((6, 1)));
        assert_eq!(version("7.0-rc1"), Some((7, 0)));
        assert_eq!(version("next"), None);
    }

    #[test]
    fn interfaces_that_hawser_made_are_checked_only_by_name() {
        let names = [
            "lo",
            "eth0",
            "hawser0",
            "hawser-in34",
            "hawser-out34",
            "hawser-tun",
        ];
        let checked = |named: &[String]| {
            let all = names.map(|name| {
                let mut interface = crate::facts::tests::interface(name).interface;
                interface.is_loopback = name == "lo";
                interface
            });
            let wanted = all.iter().filter(|interface| is_wanted(interface, named));
            wanted.map(|one| one.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(checked(&[]), ["eth0"]);
        assert_eq!(checked(&["hawser0".to_owned()]), ["hawser0"]);
    }

    #[test]
    fn programs_are_found_in_path() {
        assert!(is_in_path("sh"));
        assert!(!is_in_path("hawser-no-such-program"));
    }

    #[test]
    fn a_device_exists_or_does_not() {
        assert_eq!(is_usable(Path::new("/dev/null")), Ok(true));
        assert_eq!(
            is_usable(Path::new("/dev/hawser-no-such-device")),
            Ok(false)
        );
    }

    #[test]
    fn capabilities_are_a_hexadecimal_mask() {
        let status = "Name:\tx\nCapPrm:\t01\nCapEff:\t000001ffffffffff\n";
        assert_eq!(effective(status), Some(0x1ff_ffff_ffff));
        assert_eq!(effective("Name:\tx\n"), None);
    }

    #[test]
    fn firewalld_filters_strictly_unless_it_is_told_otherwise() {
        let filter = reverse_path_filter;
        assert_eq!(filter("# IPv6_rpfilter=no\nDefaultZone=public\n"), "strict");
        assert_eq!(filter("IPv6_rpfilter=Loose\n"), "loose");
    }

    #[test]
    fn default_routes_are_counted_by_interface() {
        let routes = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
            wan0 00000000 0100000A 0003 0 0 0 00000000 0 0 0\n\
            wan0 00000000 0100000A 0003 0 0 9 00000000 0 0 0\n\
            wan1 00000000 0100000B 0003 0 0 0 00000000 0 0 0\n\
            wan2 00000000 0100000C 0003 0 0 0 00000080 0 0 0\n\
            lan0 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";
        assert_eq!(default_routes(routes), 2);
        assert_eq!(default_routes(""), 0);
    }
}
