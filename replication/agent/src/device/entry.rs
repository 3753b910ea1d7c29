use hawser_io::netlink::{Address, Error, Route};
use serde::{Deserialize, Serialize};
use std::fmt;

/// An address or a route that outlives the agent. Its text is that of the command `ip` without the
/// verb, such as `route 10.99.0.2/32 via 192.0.2.2 dev eth0`.
///
/// Addresses come before routes: a route may have an address as its source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(super) enum Entry {
    Address(Address),
    Route(Route),
}

/// The error for a text that is not an [`Entry`].
#[derive(Debug, thiserror::Error)]
#[error("neither an address nor a route: {0}")]
pub(super) struct NotAnEntry(String);

impl Entry {
    /// Returns the route; `None` if it is an address.
    pub(super) fn route(&self) -> Option<&Route> {
        match self {
            Entry::Address(_) => None,
            Entry::Route(route) => Some(route),
        }
    }

    /// Installs the entry, or updates it if it is installed.
    pub(super) fn replace(&self) -> Result<(), Error> {
        match self {
            Entry::Address(address) => address.replace(),
            Entry::Route(route) => route.replace(),
        }
    }

    /// Removes the entry.
    pub(super) fn delete(&self) -> Result<(), Error> {
        match self {
            Entry::Address(address) => address.delete(),
            Entry::Route(route) => route.delete(),
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Address(address) => write!(f, "address {address}"),
            Entry::Route(route) => write!(f, "route {route}"),
        }
    }
}

impl From<Entry> for String {
    fn from(entry: Entry) -> String {
        entry.to_string()
    }
}

impl TryFrom<String> for Entry {
    type Error = NotAnEntry;

    fn try_from(text: String) -> Result<Self, NotAnEntry> {
        parse(&text).ok_or(NotAnEntry(text))
    }
}

fn parse(text: &str) -> Option<Entry> {
    let mut words = text.split_whitespace();
    let object = words.next()?;
    let (address, prefix_length) = words.next()?.split_once('/')?;
    let mut route = Route::new(address.parse().ok()?, prefix_length.parse().ok()?, "");
    while let Some(property) = words.next() {
        set(&mut route, property, &mut words)?;
    }
    match object {
        "address" => Some(Entry::Address(Address {
            address: route.destination,
            prefix_length: route.prefix_length,
            interface: route.interface,
        })),
        "route" => Some(Entry::Route(route)),
        _ => None,
    }
}

/// Sets a property of a route to the value that comes next. Returns none if there is no such
/// property, or the value is not valid.
fn set<'a>(
    route: &mut Route,
    property: &str,
    words: &mut impl Iterator<Item = &'a str>,
) -> Option<()> {
    match property {
        "via" => route.next_hop = Some(words.find(|word| *word != "inet6")?.parse().ok()?),
        "dev" => route.interface = words.next()?.to_owned(),
        "src" => route.source = Some(words.next()?.parse().ok()?),
        "metric" => route.metric = Some(words.next()?.parse().ok()?),
        "mtu" => route.mtu_bytes = Some(words.next()?.parse().ok()?),
        "proto" => route.protocol = Some(words.next()?.parse().ok()?),
        "nodad" => {}
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One entry of each form that the agent installs.
    const TEXTS: [&str; 5] = [
        "address 10.99.0.1/32 dev lo",
        "address fd99::1/128 dev lo nodad",
        "route 10.98.0.0/16 via 192.0.2.2 dev eth0 src 10.99.0.1 metric 1000 mtu 1400 proto 72",
        "route 0.0.0.0/0 via inet6 fe80::2 dev eth0 src 10.99.0.1 metric 2001 mtu 1400 proto 72",
        "route fd98::/16 via fe80::2 dev eth0 src fd99::1 metric 1000 mtu 1400 proto 72",
    ];

    #[test]
    fn entries_are_the_same_after_they_were_written_and_read() {
        for text in TEXTS {
            let json = serde_json::to_string(text).unwrap();
            let entry: Entry = serde_json::from_str(&json).unwrap();
            assert_eq!(serde_json::to_string(&entry).unwrap(), json);
        }
    }

    #[test]
    fn addresses_come_before_routes() {
        let mut entries = TEXTS.map(|text| parse(text).unwrap());
        entries.reverse();
        entries.sort();
        assert!(matches!(
            entries[..],
            [Entry::Address(_), Entry::Address(_), Entry::Route(_), ..]
        ));
    }

    #[test]
    fn other_texts_are_errors() {
        for text in [
            "",
            "address",
            "address 10.99.0.1 dev lo",
            "rule 10.99.0.1/32 dev lo",
            "route 10.98.0.0/16 dev",
            "route 10.98.0.0/16 dev eth0 table 7",
        ] {
            let error = Entry::try_from(text.to_owned()).unwrap_err();
            assert!(error.to_string().ends_with(text), "{error}");
        }
    }
}
