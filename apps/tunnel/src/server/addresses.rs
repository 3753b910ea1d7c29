use crate::config::{Client, Prefix};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The inner addresses of a server's clients. Who comes back gets what it had, as long as nobody else needed it.
#[derive(Debug)]
pub(crate) struct Addresses {
    prefixes: Vec<Prefix>,
    /// By configuration, and by a controller.
    fixed: BTreeMap<String, Vec<IpAddr>>,
    assigned: BTreeMap<String, Vec<IpAddr>>,
    /// All of these.
    promised: BTreeSet<IpAddr>,
    taken: BTreeSet<IpAddr>,
    had: HashMap<String, Vec<IpAddr>>,
    /// Who had an address last, and until when nobody else gets it for asking.
    reserved: HashMap<IpAddr, (String, Instant)>,
    /// For how long that is.
    keep: Duration,
    /// By prefix, the number to try next: an address rests for as long as possible.
    next: Vec<u64>,
}

/// Numbers of a prefix that are not clients': the network's own, and the server's.
const FIRST: u64 = 2;

/// Clients whose last addresses are remembered.
const REMEMBERED: usize = 65_536;

impl Addresses {
    pub(crate) fn new(
        prefixes: Vec<Prefix>,
        clients: &BTreeMap<String, Client>,
        keep: Duration,
    ) -> Addresses {
        let fixed = clients
            .iter()
            .filter(|(_, client)| !client.addresses.is_empty());
        Addresses {
            fixed: fixed
                .map(|(name, client)| (name.clone(), client.addresses.clone()))
                .collect(),
            assigned: BTreeMap::new(),
            promised: clients
                .values()
                .flat_map(|client| &client.addresses)
                .copied()
                .collect(),
            next: vec![FIRST; prefixes.len()],
            prefixes,
            taken: BTreeSet::new(),
            had: HashMap::new(),
            reserved: HashMap::new(),
            keep,
        }
    }

    /// Clients have these addresses unless the configuration gives them others. Who has another client's keeps it until it
    /// goes.
    pub(crate) fn assign(&mut self, assigned: impl Iterator<Item = (String, Vec<IpAddr>)>) {
        self.assigned = assigned.collect();
        self.promised = self
            .fixed
            .values()
            .chain(self.assigned.values())
            .flatten()
            .copied()
            .collect();
    }

    /// The server's own addresses, with the lengths of their prefixes.
    pub(crate) fn of_server(&self) -> Vec<(IpAddr, u8)> {
        let own = |prefix: &Prefix| Some((prefix.address(1)?, prefix.length()));
        self.prefixes.iter().filter_map(own).collect()
    }

    /// One address of each prefix for a client: those that it always has; those that it wants if they are free and nobody
    /// else had them a while ago; those that it had if they are free; others otherwise. None when a prefix is used up.
    pub(crate) fn take(
        &mut self,
        client: &str,
        wanted: &[IpAddr],
        now: Instant,
    ) -> Option<Vec<IpAddr>> {
        let fixed = [&self.fixed, &self.assigned]
            .into_iter()
            .filter_map(|given| given.get(client));
        let fixed: Vec<_> = fixed
            .flatten()
            .copied()
            .filter(|address| !self.taken.contains(address))
            .collect();
        let wanted: Vec<_> = wanted
            .iter()
            .copied()
            .filter(|address| !self.is_reserved(address, client, now))
            .collect();
        let had = self.had.get(client).cloned().unwrap_or_default();
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
            let chosen = fixed.or_else(|| wanted.iter().chain(&had).copied().find(usable));
            addresses.push(chosen.or_else(|| self.search(number))?);
        }
        self.taken.extend(addresses.iter().copied());
        Some(addresses)
    }

    /// The client has gone; it is remembered what it had.
    pub(crate) fn give_back(&mut self, client: &str, addresses: Vec<IpAddr>, now: Instant) {
        for address in &addresses {
            self.taken.remove(address);
        }
        if self.had.len() < REMEMBERED || self.had.contains_key(client) {
            if self.reserved.len() >= REMEMBERED {
                self.reserved.retain(|_, (_, until)| now < *until);
            }
            let until = now + self.keep;
            self.reserved.extend(
                addresses
                    .iter()
                    .map(|address| (*address, (client.to_owned(), until))),
            );
            self.had.insert(client.to_owned(), addresses);
        }
    }

    /// Whether it is to wait for another client that had it.
    fn is_reserved(&self, address: &IpAddr, client: &str, now: Instant) -> bool {
        self.reserved
            .get(address)
            .is_some_and(|(owner, until)| owner != client && now < *until)
    }

    /// Neither in use nor promised.
    fn is_free(&self, address: IpAddr) -> bool {
        !self.taken.contains(&address) && !self.promised.contains(&address)
    }

    fn search(&mut self, prefix: usize) -> Option<IpAddr> {
        let start = self.next[prefix];
        let mut number = start;
        loop {
            let address = self.prefixes[prefix].address(number);
            // The last IPv4 address of a prefix is everybody's.
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

        fn give_back_now(&mut self, client: &str, addresses: Vec<IpAddr>) {
            self.give_back(client, addresses, Instant::now());
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
        let had = pool.take_now("a", &[]).unwrap();
        pool.give_back_now("a", had.clone());
        assert_ne!(pool.take_now("b", &[]), Some(had.clone()));
        assert_eq!(pool.take_now("a", &[]), Some(had));
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
            pool.give_back_now("c", got);
        }
        assert_eq!(pool.take_now("fixed", &[]).unwrap()[0], ip("10.77.0.4"));
    }

    #[test]
    fn what_a_client_had_a_while_ago_another_one_does_not_get_for_asking() {
        let mut pool = pool(&[]);
        let start = Instant::now();
        let had = pool.take("a", &[], start).unwrap();
        pool.give_back("a", had.clone(), start);
        let thief = pool.take("thief", &had, start + KEEP / 2).unwrap();
        assert!(
            thief.iter().all(|address| !had.contains(address)),
            "{thief:?}"
        );
        assert_eq!(pool.take("a", &had, start + KEEP / 2), Some(had.clone()));
        pool.give_back("a", had.clone(), start + KEEP / 2);
        assert_eq!(pool.take("heir", &had, start + 2 * KEEP), Some(had));
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
            "somebody has it still, and all others are promised"
        );
        pool.give_back_now("b", b);
        pool.give_back_now("early", early);
        assert_eq!(pool.take_now("b", &[]).unwrap()[0], ip("10.77.0.3"));
        assert_eq!(
            pool.take_now("c", &[]).unwrap()[0],
            ip("10.77.0.6"),
            "it is of no prefix of this server"
        );
    }

    #[test]
    fn what_a_client_has_now_counts_more_than_what_it_had_here_before() {
        let mut pool = pool(&[]);
        let had = pool.take_now("a", &[]).unwrap();
        pool.give_back_now("a", had);
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
        pool.give_back_now(&name.to_string(), addresses.clone());
        assert_eq!(pool.take_now("more", &[]).unwrap()[0], addresses[0]);
    }
}
