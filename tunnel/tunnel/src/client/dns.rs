//! The name servers of this node while the tunnel is up: set at systemd-resolved or openresolv where
//! one of these keeps `/etc/resolv.conf`, and otherwise in this file.

use super::resolv_conf::ResolvConf;
use crate::config::{ClientConfig, UplinkRule};
use anyhow::Result;
use hawser_io::interface::running;
use hawser_io::kept::{Deviation, Item, Keeper, Problem};
use hawser_io::program;
use parking_lot::Mutex;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tracing::{debug, error, info, warn};

const ETC: &str = "/etc";

/// The folder of systemd-resolved's own files, and the address of its stub.
const RESOLVED: &str = "/run/systemd/resolve";
const RESOLVED_STUB: &str = "nameserver 127.0.0.53";

/// The interval at which the file is checked for changes of other programs.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The interval at which the domains of the uplinks are read from systemd-resolved.
const DOMAINS_INTERVAL: Duration = Duration::from_secs(10);

/// The time limit of the programs that are run.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(5);

/// The name servers of a client. Dropping the value restores the previous ones, and waits until this
/// is done.
pub(crate) struct Dns {
    /// None if the configuration has no name servers.
    setter: Option<(Sender<()>, JoinHandle<()>)>,
    shown: Arc<Mutex<Shown>>,
}

/// The part of the status about name servers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shown {
    /// Where the name servers are set, or why they are not; none before the first session.
    pub(crate) state: Option<String>,
    /// How often they were set again because another program had replaced the file.
    pub(crate) restored: u64,
    /// The uplinks whose name servers systemd-resolved asks for names in some domains, each with its
    /// domains: `wlan0: guest.example lan`.
    pub(crate) uplink_domains: Vec<String>,
    /// The replacements of the file by other programs.
    pub(crate) deviations: Vec<Deviation>,
}

impl Dns {
    /// Restores what a killed process has left, and prepares to set the name servers of the
    /// configuration.
    pub(crate) fn prepare(config: &ClientConfig) -> Dns {
        let interface = &config.common.interface;
        let file = ResolvConf::new(Path::new(ETC), interface);
        match file.restore() {
            Ok(true) => warn!("/etc/resolv.conf restored: a killed client had left its own"),
            Ok(false) => {}
            Err(error) => error!("cannot restore /etc/resolv.conf: {error:#}"),
        }
        match withdraw_from_openresolv(interface) {
            Ok(true) => {
                warn!("name servers withdrawn from openresolv: a killed client had left them")
            }
            Ok(false) => {}
            Err(error) => error!("cannot withdraw the name servers from openresolv: {error:#}"),
        }
        let shown = Arc::default();
        if config.dns.is_empty() {
            return Dns {
                setter: None,
                shown,
            };
        }
        let (sender, requests) = mpsc::channel();
        let setter = Setter {
            interface: interface.clone(),
            servers: config.dns.iter().map(ToString::to_string).collect(),
            domains: config.dns_domains.clone(),
            uplinks: config.uplinks.clone(),
            file,
            shown: Arc::clone(&shown),
            keeper: Mutex::default(),
        };
        Dns {
            setter: Some((sender, thread::spawn(move || setter.run(&requests)))),
            shown,
        }
    }

    /// Sets the name servers, without waiting for it.
    pub(crate) fn set(&self) {
        if let Some((requests, _)) = &self.setter {
            // The thread runs as long as this value.
            let _ = requests.send(());
        }
    }

    pub(crate) fn shown(&self) -> Shown {
        self.shown.lock().clone()
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        if let Some((requests, thread)) = self.setter.take() {
            drop(requests);
            // Its panic has already been reported.
            let _ = thread.join();
        }
    }
}

/// The program or file by which name servers are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Means {
    Resolved,
    Openresolv,
    File,
}

impl Means {
    /// Returns what keeps `/etc/resolv.conf`.
    fn of_this_node() -> Means {
        let file = Path::new(ETC).join("resolv.conf");
        let text = fs::read_to_string(&file).unwrap_or_default();
        let is_of_resolved = fs::canonicalize(&file).is_ok_and(|file| file.starts_with(RESOLVED));
        if is_of_resolved || text.lines().any(|line| line.trim() == RESOLVED_STUB) {
            return Means::Resolved;
        }
        match is_openresolv() {
            true => Means::Openresolv,
            false => Means::File,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Means::Resolved => "systemd-resolved",
            Means::Openresolv => "openresolv",
            Means::File => "/etc/resolv.conf",
        }
    }
}

/// Returns whether `resolvconf` is that of openresolv. Other programs of this name do not take a
/// metric or exclusive servers.
fn is_openresolv() -> bool {
    let version = run("resolvconf", &["--version"], "").unwrap_or_default();
    version.starts_with("openresolv")
}

/// Withdraws the name servers of a killed client, which openresolv keeps without its device. Returns
/// whether there were any. Those of a client that runs, whose device has a carrier, stay.
fn withdraw_from_openresolv(interface: &str) -> Result<bool> {
    if running()?.contains(interface) || !is_openresolv() {
        return Ok(false);
    }
    // Fails if there are none.
    let left = run("resolvconf", &["-f", "-l", interface], "").unwrap_or_default();
    if left.trim().is_empty() {
        return Ok(false);
    }
    run("resolvconf", &["-d", interface, "-f"], "")?;
    Ok(true)
}

struct Setter {
    interface: String,
    servers: Vec<String>,
    domains: Vec<String>,
    uplinks: Vec<UplinkRule>,
    file: ResolvConf,
    shown: Arc<Mutex<Shown>>,
    keeper: Mutex<Keeper>,
}

impl Setter {
    /// Sets the name servers at each request, and restores the previous ones when there cannot be
    /// another one.
    fn run(self, requests: &Receiver<()>) {
        let (mut was_requested, mut means) = (false, None);
        let mut check_domains_at = Instant::now();
        loop {
            match (requests.recv_timeout(CHECK_INTERVAL), means) {
                (Ok(()), _) => {
                    was_requested = true;
                    means = self.set(means);
                    if means == Some(Means::File) {
                        // From here on, another file is a replacement.
                        self.check();
                    }
                    check_domains_at = Instant::now();
                }
                (Err(RecvTimeoutError::Timeout), Some(Means::File)) => self.check(),
                (Err(RecvTimeoutError::Timeout), None) if was_requested => means = self.set(None),
                (Err(RecvTimeoutError::Timeout), Some(Means::Resolved))
                    if Instant::now() >= check_domains_at =>
                {
                    self.check_domains();
                    check_domains_at = Instant::now() + DOMAINS_INTERVAL;
                }
                (Err(RecvTimeoutError::Timeout), _) => {}
                (Err(RecvTimeoutError::Disconnected), _) => break,
            }
        }
        if let Some(means) = means {
            let restored = self.restore(means);
            restored.unwrap_or_else(|error| error!("cannot restore the name servers: {error:#}"));
        }
    }

    /// Sets the name servers by `means`, or by what keeps the file at present.
    fn set(&self, means: Option<Means>) -> Option<Means> {
        let means = means.unwrap_or_else(Means::of_this_node);
        let outcome = self.set_by(means);
        let state = match &outcome {
            Ok(()) => format!("{} at {}", self.servers.join(", "), means.name()),
            Err(error) => format!("not set at {}: {error:#}", means.name()),
        };
        // Failures repeat.
        if self.shown.lock().state.replace(state.clone()).as_ref() != Some(&state) {
            match &outcome {
                Ok(()) => info!(servers = ?self.servers, by = means.name(), "name servers set"),
                Err(_) => error!("name servers {state}"),
            }
        }
        outcome.is_ok().then_some(means)
    }

    fn set_by(&self, means: Means) -> Result<()> {
        let interface = &self.interface;
        match means {
            Means::Resolved => {
                let servers = [&["dns".to_owned(), interface.clone()][..], &self.servers];
                run("resolvectl", &servers.concat(), "")?;
                // The root domain makes resolved ask these servers for all names.
                let domains = ["domain", interface, "~."].map(str::to_owned);
                run("resolvectl", &[&domains[..], &self.domains].concat(), "")?;
            }
            Means::Openresolv => {
                let arguments = ["-a", interface, "-m", "0", "-x"];
                run("resolvconf", &arguments, &self.lines())?;
            }
            Means::File => self.file.replace(&self.lines())?,
        }
        Ok(())
    }

    /// Sets the name servers in the file again if another program has replaced it.
    fn check(&self) {
        let mut keeper = self.keeper.lock();
        keeper.keep(&mut [Box::new(KeptFile(self))]);
        self.shown.lock().deviations = keeper.deviations();
    }

    /// Warns if systemd-resolved asks the servers of an uplink for names in some domains: it prefers the
    /// most specific domain of any link.
    fn check_domains(&self) {
        let domains = match run("resolvectl", &["domain"], "") {
            Ok(output) => domains_by_link(&output),
            Err(error) => return debug!("cannot read the domains of the uplinks: {error:#}"),
        };
        let is_uplink = |link: &str| self.uplinks.iter().any(|rule| rule.matches(link));
        let found: Vec<_> = domains
            .into_iter()
            .filter(|(link, domains)| is_uplink(link) && !domains.is_empty())
            .map(|(link, domains)| format!("{link}: {}", domains.join(" ")))
            .collect();
        let before = std::mem::replace(&mut self.shown.lock().uplink_domains, found.clone());
        for uplink in found.iter().filter(|uplink| !before.contains(uplink)) {
            warn!(
                "systemd-resolved asks the servers of an uplink for names in domains of that uplink, and for all names if one is `~.`: {uplink}"
            );
        }
    }

    fn restore(&self, means: Means) -> Result<()> {
        match means {
            Means::Resolved => drop(run("resolvectl", &["revert", &self.interface], "")?),
            Means::Openresolv => drop(run("resolvconf", &["-d", &self.interface, "-f"], "")?),
            Means::File => drop(self.file.restore()?),
        }
        info!(by = means.name(), "previous name servers restored");
        Ok(())
    }

    /// Returns the lines of `resolv.conf`.
    fn lines(&self) -> String {
        let servers = self
            .servers
            .iter()
            .map(|server| format!("nameserver {server}\n"));
        let search =
            (!self.domains.is_empty()).then(|| format!("search {}\n", self.domains.join(" ")));
        servers.chain(search).collect()
    }
}

/// The resolver's file, which should be this client's.
struct KeptFile<'a>(&'a Setter);

impl Item for KeptFile<'_> {
    fn name(&self) -> String {
        "/etc/resolv.conf".to_owned()
    }

    fn examine(&self) -> Option<Problem> {
        let is_replaced = self.0.file.is_replaced();
        if let Err(error) = &is_replaced {
            self.0.shown.lock().state = Some(format!("{error:#}"));
        }
        let is_other = is_replaced.is_ok_and(|is_replaced| !is_replaced);
        is_other.then(|| Problem {
            what: "another program has replaced /etc/resolv.conf, which is used again when the tunnel ends"
                .to_owned(),
            advice: "let systemd-resolved or openresolv keep it".to_owned(),
        })
    }

    fn restore(&mut self) -> Result<bool, String> {
        self.0.shown.lock().restored += 1;
        match self.0.set(Some(Means::File)) {
            Some(_) => Ok(true),
            None => Err(self.0.shown.lock().state.clone().unwrap_or_default()),
        }
    }
}

/// Returns the domains of each link from the output of `resolvectl domain`. A line that begins with
/// spaces continues the one before.
fn domains_by_link(output: &str) -> Vec<(String, Vec<String>)> {
    let mut links: Vec<(String, Vec<String>)> = Vec::new();
    for line in output.lines() {
        let domains = match line.split_once(':') {
            Some((link, domains)) if !line.starts_with(' ') => {
                // `Global` has no interface.
                let name = link.split_once('(').map_or("", |(_, name)| name);
                links.push((name.trim_end_matches(')').to_owned(), Vec::new()));
                domains
            }
            _ => line,
        };
        if let Some((_, all)) = links.last_mut() {
            all.extend(domains.split_whitespace().map(str::to_owned));
        }
    }
    links
}

/// Runs a program with this input; returns its output.
fn run<A: AsRef<str>>(program: &str, arguments: &[A], input: &str) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments.iter().map(AsRef::as_ref));
    let output = program::output(&mut command, input, PROGRAM_TIMEOUT)?;
    Ok(String::from_utf8(output)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_domains_of_links_are_read() {
        let output = "Global: example.org\n\
            Link 2 (eth0):\n\
            Link 3 (wlan0): guest.example ~com\n        lan\n\
            Link 4 (hawser-tun): ~.\n";
        let links = domains_by_link(output);
        let expected: [(&str, &[&str]); 4] = [
            ("", &["example.org"]),
            ("eth0", &[]),
            ("wlan0", &["guest.example", "~com", "lan"]),
            ("hawser-tun", &["~."]),
        ];
        let expected = expected.map(|(link, domains)| {
            let domains = domains.iter().map(|domain| (*domain).to_owned());
            (link.to_owned(), domains.collect::<Vec<_>>())
        });
        assert_eq!(links, expected);
    }
}
