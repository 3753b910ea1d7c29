use super::access;
use crate::Publication;
use crate::keys::SessionKeys;
use hawser_packets::feedback::Feedback;
use hawser_packets::session::{COOKIE, Hello, Kind, MAC, Message, Sealed, Subscribe};
use hawser_units::Instant;
use std::net::SocketAddr;

/// A viewer that has the secret and seals any message, true or not.
pub struct HostileViewer {
    address: SocketAddr,
    session: u32,
    keys: SessionKeys,
    next: u64,
}

impl HostileViewer {
    /// Opens a session with a publication of [`secret`](super::secret), and selects two layers of each of
    /// the tracks. Returns `None` if there is no room.
    pub fn join(
        publication: &mut Publication,
        now: Instant,
        address: SocketAddr,
        tracks: &[u32],
    ) -> Option<Self> {
        let random = [address.port() as u8; 16];
        let mut hello = Hello {
            broadcast: access().broadcast(),
            viewer_random: random,
            cookie: [0; COOKIE],
            mac: [0; MAC],
        };
        let answer = |publication: &mut Publication, hello: Hello| {
            let hello = access().authenticate(hello).emit();
            let _ = publication.handle_datagram(now, address, &hello);
            let mut sent = std::iter::from_fn(|| publication.poll_transmit(now));
            sent.find(|outgoing| outgoing.to == address)
        };
        let retry = answer(publication, hello)?;
        if let Ok(Message::Retry(retry)) = Message::parse(&retry.datagram) {
            hello.cookie = retry.cookie;
        }
        let accept = answer(publication, hello)?;
        let Ok(Message::Sealed(accept)) = Message::parse(&accept.datagram) else {
            return None;
        };
        let mut viewer = HostileViewer {
            address,
            session: accept.session,
            keys: access().session(&accept.randoms?),
            next: 0,
        };
        let tracks = tracks.iter().map(|alias| (*alias, 2)).collect();
        let subscribe = Subscribe {
            number: 1,
            tracks,
            any_encoding: false,
        };
        let subscribe = viewer.seal(0, Kind::Subscribe, subscribe.emit());
        let _ = publication.handle_datagram(now, address, &subscribe);
        Some(viewer)
    }

    /// Returns the viewer's address.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a report as a datagram, `back` numbers behind the newest one.
    pub fn report(&mut self, report: &Feedback, back: u64) -> Vec<u8> {
        self.seal(back, Kind::Feedback, report.emit())
    }

    fn seal(&mut self, back: u64, kind: Kind, mut plaintext: Vec<u8>) -> Vec<u8> {
        let number = self.next.saturating_sub(back);
        self.next += u64::from(back == 0);
        let message = Sealed {
            kind,
            session: self.session,
            number,
            randoms: None,
            ciphertext: &[],
        };
        let clear = message.clear();
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        self.keys.from_viewer.seal(nonce, &clear, &mut plaintext);
        [clear, plaintext].concat()
    }
}
