use crate::config::{Client, Prefix};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The inner addresses of a server's clients. A client that comes back gets its previous addresses
/// unless another client has them.
#[derive(Debug)]
pub(crate) struct Addresses {
    prefixes: Vec<Prefix>,
    /// Permanent addresses by client: from the configuration, and from a controller.
    fixed: BTreeMap<String, Vec<IpAddr>>,
    assigned: BTreeMap<String, Vec<IpAddr>>,
    /// All permanent addresses.
    promised: BTreeSet<IpAddr>,
    taken: BTreeSet<IpAddr>,
    previous: HashMap<String, Vec<IpAddr>>,
    /// The last client of an address, and the time until which other clients do not get the address
    /// by requesting it.
    reserved: HashMap<IpAddr, (String, Instant)>,
    /// The duration of such a reservation.
    keep: Duration,
    /// The number to try next, by prefix: addresses are reused as late as possible.
    next: Vec<u64>,
}

/// The first number of a prefix that a client can have, after those of the network and of the
/// server.
const FIRST: u64 = 2;

/// The number of clients whose previous addresses are remembered.
const REMEMBERED: usize = 65_536;

impl Addresses {
    pub(crate) fn new(
        prefixes: Vec<Prefix>,
        clients: &BTreeMap<String, Client>,
        keep: Duration,
    ) -> Addresses {
        let mut addresses = Addresses {
            fixed: BTreeMap::new(),
            assigned: BTreeMap::new(),
            promised: BTreeSet::new(),
            next: vec![FIRST; prefixes.len()],
            prefixes,
            taken: BTreeSet::new(),
            previous: HashMap::new(),
            reserved: HashMap::new(),
            keep,
        };
        addresses.fix(clients);
        addresses
    }

    /// Sets the permanent addresses of the configuration. A session that has another client's
    /// permanent address, or other addresses than its client's, keeps them until it ends.
    pub(crate) fn fix(&mut self, clients: &BTreeMap<String, Client>) {
        let fixed = clients
            .iter()
            .filter(|(_, client)| !client.addresses.is_empty());
        self.fixed = fixed
            .map(|(name, client)| (name.clone(), client.addresses.clone()))
            .collect();
        self.promise();
    }

    /// Sets the permanent addresses that the controller assigned; those of the configuration take
    /// precedence. A session that has another client's permanent address keeps it until it ends.
    pub(crate) fn assign(&mut self, assigned: impl Iterator<Item = (String, Vec<IpAddr>)>) {
        self.assigned = assigned.collect();
        self.promise();
    }

    fn promise(&mut self) {
        self.promised = self
            .fixed
            .values()
            .chain(self.assigned.values())
            .flatten()
            .copied()
            .collect();
    }

    /// Returns the server's own addresses with their prefix lengths.
    pub(crate) fn of_server(&self) -> Vec<(IpAddr, u8)> {
        let own = |prefix: &Prefix| Some((prefix.address(1)?, prefix.length()));
        self.prefixes.iter().filter_map(own).collect()
    }

    /// Takes one address of each prefix for a client, in this order of preference: its permanent
    /// ones; those that it requests, if they are free and not reserved for another client; its
    /// previous ones, if they are free; any free ones. Returns none when a prefix is exhausted.
    pub(crate) fn take(
        &mut self,
        client: &str,
        wanted: &[IpAddr],
        now: Instant,
    ) -> Option<Vec<IpAddr>> {
        let fixed = self.free_fixed(client);
        let wanted: Vec<_> = wanted
            .iter()
            .copied()
            .filter(|address| !self.is_reserved(address, client, now))
            .collect();
        let previous = self.previous.get(client).cloned().unwrap_or_default();
        let mut addresses = Vec::new();
        for number in 0..self.prefixes.len() {
            let prefix = self.prefixes[number];
            let is_client_s = |address: &IpAddr| {
                prefix
                    .number(*address)
                    .is_some_and(|number| number >= FIRST)
            };
            let fixed = fixed.iter().copied().find(is_client_s);
            let usable = |address: &IpAddr| is_client_s(address) && self.is_free(*address);
            let chosen = fixed.or_else(|| wanted.iter().chain(&previous).copied().find(usable));
            addresses.push(chosen.or_else(|| self.search(number))?);
        }
        self.taken.extend(addresses.iter().copied());
        Some(addresses)
    }

    /// Returns the permanent addresses of a client that no session has.
    fn free_fixed(&self, client: &str) -> Vec<IpAddr> {
        let given = [&self.fixed, &self.assigned].into_iter();
        let fixed = given.filter_map(|given| given.get(client)).flatten();
        fixed
            .copied()
            .filter(|address| !self.taken.contains(address))
            .collect()
    }

    /// Frees the addresses of a client and remembers them as its previous ones.
    pub(crate) fn release(&mut self, client: &str, addresses: Vec<IpAddr>, now: Instant) {
        for address in &addresses {
            self.taken.remove(address);
        }
        if self.previous.len() < REMEMBERED || self.previous.contains_key(client) {
            if self.reserved.len() >= REMEMBERED {
                self.reserved.retain(|_, (_, until)| now < *until);
            }
            let until = now + self.keep;
            self.reserved.extend(
                addresses
                    .iter()
                    .map(|address| (*address, (client.to_owned(), until))),
            );
            self.previous.insert(client.to_owned(), addresses);
        }
    }

    /// Returns whether the address is reserved for another client.
    fn is_reserved(&self, address: &IpAddr, client: &str, now: Instant) -> bool {
        self.reserved
            .get(address)
            .is_some_and(|(owner, until)| owner != client && now < *until)
    }

    /// Returns whether the address is neither in use nor permanently assigned.
    fn is_free(&self, address: IpAddr) -> bool {
        !self.taken.contains(&address) && !self.promised.contains(&address)
    }

    fn search(&mut self, prefix: usize) -> Option<IpAddr> {
        let start = self.next[prefix];
        let mut number = start;
        loop {
            let address = self.prefixes[prefix].address(number);
            // The last IPv4 address of a prefix is the broadcast address.
            let usable = self.prefixes[prefix].address(number + 1).is_some()
                || !self.prefixes[prefix].is_ipv4();
            number = match address {
                Some(address) if usable && self.is_free(address) => {
                    self.next[prefix] = number + 1;
                    return Some(address);
                }
                Some(_) => number + 1,
                None => FIRST,
            };
            if number == start {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(120);

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn pool(fixed: &[(&str, &str)]) -> Addresses {
        let prefixes = vec![
            "10.77.0.0/29".parse().unwrap(),
            "fd77::/64".parse().unwrap(),
        ];
        let clients = fixed.iter().map(|(name, address)| {
            (
                name.to_string(),
                Client {
                    addresses: vec![ip(address)],
                },
            )
        });
        Addresses::new(prefixes, &clients.collect(), KEEP)
    }

    impl Addresses {
        fn take_now(&mut self, client: &str, wanted: &[IpAddr]) -> Option<Vec<IpAddr>> {
            self.take(client, wanted, Instant::now())
        }

        fn release_now(&mut self, client: &str, addresses: Vec<IpAddr>) {
            self.release(client, addresses, Instant::now());
        }
    }

    #[test]
    fn everybody_has_one_of_each_family() {
        let mut pool = pool(&[]);
        assert_eq!(
            pool.of_server(),
            [(ip("10.77.0.1"), 29), (ip("fd77::1"), 64)]
        );
        assert_eq!(
            pool.take_now("a", &[]),
            Some(vec![ip("10.77.0.2"), ip("fd77::2")])
        );
        assert_eq!(
            pool.take_now("b", &[]),
            Some(vec![ip("10.77.0.3"), ip("fd77::3")])
        );
    }

    #[test]
    fn who_comes_back_has_what_it_had() {
        let mut pool = pool(&[]);
        let previous = pool.take_now("a", &[]).unwrap();
        pool.release_now("a", previous.clone());
        assert_ne!(pool.take_now("b", &[]), Some(previous.clone()));
        assert_eq!(pool.take_now("a", &[]), Some(previous));
    }

    #[test]
    fn what_a_client_had_elsewhere_it_gets_if_it_is_free() {
        let mut pool = pool(&[("fixed", "10.77.0.4")]);
        let wanted = [ip("10.77.0.5"), ip("fd77::5")];
        assert_eq!(pool.take_now("a", &wanted), Some(wanted.to_vec()));
        assert_ne!(pool.take_now("b", &wanted).unwrap()[0], wanted[0]);
        for not_for_clients in ["10.77.0.0", "10.77.0.1", "10.77.0.4", "192.0.2.1"] {
            let got = pool.take_now("c", &[ip(not_for_clients)]).unwrap();
            assert_ne!(got[0], ip(not_for_clients));
            pool.release_now("c", got);
        }
        assert_eq!(pool.take_now("fixed", &[]).unwrap()[0], ip("10.77.0.4"));
    }

    #[test]
    fn a_recent_address_is_not_given_to_another_client() {
        let mut pool = pool(&[]);
        let start = Instant::now();
        let previous = pool.take("a", &[], start).unwrap();
        pool.release("a", previous.clone(), start);
        let thief = pool.take("thief", &previous, start + KEEP / 2).unwrap();
        assert!(
            thief.iter().all(|address| !previous.contains(address)),
            "{thief:?}"
        );
        assert_eq!(
            pool.take("a", &previous, start + KEEP / 2),
            Some(previous.clone())
        );
        pool.release("a", previous.clone(), start + KEEP / 2);
        assert_eq!(
            pool.take("heir", &previous, start + 2 * KEEP),
            Some(previous)
        );
    }

    #[test]
    fn what_a_controller_assigns_is_kept_for_its_client() {
        let mut pool = pool(&[("fixed", "10.77.0.4")]);
        let assigned = [
            ("a", "10.77.0.2"),
            ("b", "10.77.0.3"),
            ("fixed", "10.77.0.5"),
            ("c", "192.0.2.9"),
        ];
        let early = pool.take_now("early", &[ip("10.77.0.3")]).unwrap();
        assert_eq!(early[0], ip("10.77.0.3"));
        pool.assign(
            assigned
                .iter()
                .map(|(name, address)| (name.to_string(), vec![ip(address)])),
        );
        assert_eq!(pool.take_now("a", &[]).unwrap()[0], ip("10.77.0.2"));
        assert_eq!(pool.take_now("fixed", &[]).unwrap()[0], ip("10.77.0.4"));
        let b = pool.take_now("b", &[]).unwrap();
        assert_eq!(
            b[0],
            ip("10.77.0.6"),
            "its own is still in use, and all others are promised"
        );
        pool.release_now("b", b);
        pool.release_now("early", early);
        assert_eq!(pool.take_now("b", &[]).unwrap()[0], ip("10.77.0.3"));
        assert_eq!(
            pool.take_now("c", &[]).unwrap()[0],
            ip("10.77.0.6"),
            "its own is in no prefix of this server"
        );
    }

    #[test]
    fn a_clients_present_addresses_count_more_than_earlier() {
        let mut pool = pool(&[]);
        let previous = pool.take_now("a", &[]).unwrap();
        pool.release_now("a", previous);
        assert_eq!(
            pool.take_now("a", &[ip("10.77.0.5")]).unwrap()[0],
            ip("10.77.0.5")
        );
    }

    #[test]
    fn a_prefix_is_used_up_at_some_point_and_an_address_rests() {
        let mut pool = pool(&[]);
        let taken: Vec<_> = (2..=6)
            .map(|i| (i, pool.take_now(&i.to_string(), &[]).unwrap()))
            .collect();
        assert_eq!(
            pool.take_now("more", &[]),
            None,
            "10.77.0.7 is the broadcast address"
        );
        let (name, addresses) = taken[3].clone();
        pool.release_now(&name.to_string(), addresses.clone());
        assert_eq!(pool.take_now("more", &[]).unwrap()[0], addresses[0]);
    }
}
