//! All keys, derived from the secret of the tracks by HKDF-SHA256 (RFC 5869).

use aes_gcm::aead::AeadInPlace;
use aes_gcm::{Aes128Gcm, KeyInit, Nonce, Tag};
use hawser_packets::media::{AEAD_TAG, Hop};
use hawser_packets::session::{Announcement, Hello, MAC, MessageError};
use hawser_wire::Key;
use hawser_wire::secret::{self, expand};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::fmt;
use zeroize::{Zeroize, Zeroizing};

/// The maximum number of packets that a key may seal: the confidentiality limit of
/// AEAD_AES_128_GCM in RFC 9001, section 6.6.
pub const PACKETS_PER_KEY: u64 = 1 << 23;

/// The secret of tracks that are published together. Publisher and viewers have it.
#[derive(Clone)]
pub struct TrackSecret(Zeroizing<[u8; 32]>);

/// The secret that opens sessions and authenticates each hop. It is derived from the
/// [`TrackSecret`], and a relay has only this one.
#[derive(Clone)]
pub struct AccessSecret(Zeroizing<[u8; 32]>);

/// Random bytes from which a [`Host`](crate::Host) makes cookies and sessions.
#[derive(Clone)]
pub struct Seed(Zeroizing<[u8; 32]>);

/// A key that seals with AES-128-GCM, and its initial vector.
pub(crate) struct AeadKey {
    cipher: Aes128Gcm,
    iv: [u8; 12],
}

/// The keys of both directions of a session.
pub(crate) struct SessionKeys {
    pub(crate) from_viewer: AeadKey,
    pub(crate) from_sender: AeadKey,
}

/// The authenticator is wrong: the other end does not have the key, or bytes were changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the authentication tag is wrong")]
pub(crate) struct Forged;

impl TrackSecret {
    /// Creates a secret from 32 random bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        TrackSecret(Zeroizing::new(bytes))
    }

    /// Returns the secret for relays, from which this one cannot be computed.
    pub fn access(&self) -> AccessSecret {
        AccessSecret(secret::access(&self.0))
    }

    /// Returns the key of the packets of a track in an epoch of an incarnation.
    pub(crate) fn packet_key(&self, incarnation: &[u8; 16], epoch: u16, alias: u32) -> AeadKey {
        let info: [&[u8]; 3] = [
            b"hawser media 1",
            &epoch.to_be_bytes(),
            &alias.to_be_bytes(),
        ];
        AeadKey::new(&expand(&self.0, incarnation, &info))
    }

    /// Returns the bytes of an announcement with its authenticator.
    ///
    /// Returns an error if the tracks do not fit or are not in order.
    pub fn announce(&self, announcement: &Announcement) -> Result<Vec<u8>, MessageError> {
        let mut bytes = announcement.emit()?;
        let mac = self.announcement_mac(&bytes);
        bytes.extend(mac);
        Ok(bytes)
    }

    /// Returns the announcement if a holder of this secret made it.
    pub fn verify(&self, bytes: &[u8]) -> Result<Announcement, MessageError> {
        let (covered, mac) = Announcement::split(bytes)?;
        if !is_equal(&self.announcement_mac(covered), &mac) {
            return Err(MessageError::Invalid);
        }
        Announcement::parse(covered)
    }

    fn announcement_mac(&self, covered: &[u8]) -> [u8; MAC] {
        let key: Zeroizing<[u8; 32]> = expand(&self.0, &[], &[b"hawser announcement 1"]);
        mac(&key[..], &[covered])
    }
}

impl AccessSecret {
    /// Creates the secret from the bytes that [`AccessSecret::to_bytes`] returned.
    pub fn new(bytes: [u8; 32]) -> Self {
        AccessSecret(Zeroizing::new(bytes))
    }

    /// Returns the bytes, to be given to a relay.
    pub fn to_bytes(&self) -> Zeroizing<[u8; 32]> {
        self.0.clone()
    }

    /// Returns the identifier of the tracks, which does not disclose the secret.
    pub fn broadcast(&self) -> [u8; 16] {
        *expand::<16>(&self.0, &[], &[b"hawser broadcast 1"])
    }

    /// Returns the key with which a hop tags packets.
    pub fn hop(&self, salt: &[u8; 16], number: u16) -> Hop {
        let key = expand(&self.0, salt, &[b"hawser hop 1", &number.to_be_bytes()]);
        Hop {
            number,
            key: Key::from_bytes(*key),
        }
    }

    /// Returns the request with its authenticator.
    pub(crate) fn authenticate(&self, mut hello: Hello) -> Hello {
        hello.mac = self.hello_mac(&hello);
        hello
    }

    /// Returns whether a holder of this secret made the request.
    pub(crate) fn has_made(&self, hello: &Hello) -> bool {
        is_equal(&self.hello_mac(hello), &hello.mac)
    }

    /// Returns the authenticator of a catalog, which proves that a holder of this secret made it. `covered`
    /// are the bytes that it covers.
    pub fn authenticate_catalog(&self, covered: &[u8]) -> [u8; MAC] {
        let key: Zeroizing<[u8; 32]> = expand(&self.0, &[], &[b"hawser catalog 1"]);
        mac(&key[..], &[covered])
    }

    /// Returns whether a holder of this secret made the authenticator of a catalog.
    pub fn has_made_catalog(&self, covered: &[u8], authenticator: &[u8; MAC]) -> bool {
        is_equal(&self.authenticate_catalog(covered), authenticator)
    }

    fn hello_mac(&self, hello: &Hello) -> [u8; MAC] {
        let key: Zeroizing<[u8; 32]> = expand(&self.0, &[], &[b"hawser hello 1"]);
        mac(&key[..], &[&hello.covered()])
    }

    /// Returns the keys of a session from the random bytes of viewer and sender.
    pub(crate) fn session(&self, randoms: &[[u8; 16]; 2]) -> SessionKeys {
        let keys: Zeroizing<[u8; 56]> =
            expand(&self.0, randoms.as_flattened(), &[b"hawser session 1"]);
        let half = |at: usize| Zeroizing::new(std::array::from_fn(|byte| keys[at + byte]));
        SessionKeys {
            from_viewer: AeadKey::new(&half(0)),
            from_sender: AeadKey::new(&half(28)),
        }
    }
}

impl Seed {
    /// Creates a seed from 32 random bytes, new for each start.
    pub fn new(bytes: [u8; 32]) -> Self {
        Seed(Zeroizing::new(bytes))
    }

    /// Returns another seed for each number.
    pub fn numbered(&self, number: u64) -> Seed {
        self.part(&number.to_be_bytes())
    }

    /// Returns the seed for one purpose.
    pub(crate) fn part(&self, purpose: &[u8]) -> Seed {
        Seed(expand(&self.0, &[], &[purpose]))
    }

    /// Returns bytes that only a holder of the seed can make from `parts`.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> [u8; MAC] {
        mac(&self.0[..], parts)
    }
}

impl AeadKey {
    fn new(bytes: &[u8; 28]) -> Self {
        let [key @ .., _, _, _, _, _, _, _, _, _, _, _, _] = bytes;
        let mut iv = [0; 12];
        iv.copy_from_slice(&bytes[16..]);
        AeadKey {
            cipher: Aes128Gcm::new(key.into()),
            iv,
        }
    }

    /// Replaces a payload by its ciphertext and tag.
    pub(crate) fn seal(&self, nonce: [u8; 12], associated: &[u8], payload: &mut Vec<u8>) {
        let nonce = self.nonce(nonce);
        let tag = self
            .cipher
            .encrypt_in_place_detached(&nonce, associated, payload)
            .expect("a datagram is shorter than the limit of GCM, 64 GiB");
        payload.extend(tag);
    }

    /// Returns the payload of a ciphertext with its tag.
    pub(crate) fn open(
        &self,
        nonce: [u8; 12],
        associated: &[u8],
        sealed: &[u8],
    ) -> Result<Vec<u8>, Forged> {
        let (ciphertext, tag) = sealed.split_last_chunk::<AEAD_TAG>().ok_or(Forged)?;
        let mut payload = ciphertext.to_vec();
        let nonce = self.nonce(nonce);
        self.cipher
            .decrypt_in_place_detached(&nonce, associated, &mut payload, Tag::from_slice(tag))
            .map_err(|_| Forged)?;
        Ok(payload)
    }

    /// Returns the nonce on which the cipher works (RFC 8446, section 5.3).
    fn nonce(&self, nonce: [u8; 12]) -> Nonce<aes_gcm::aead::consts::U12> {
        std::array::from_fn::<u8, 12, _>(|at| self.iv[at] ^ nonce[at]).into()
    }
}

impl Drop for AeadKey {
    fn drop(&mut self) {
        self.iv.zeroize();
    }
}

impl fmt::Debug for TrackSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrackSecret(secret)")
    }
}

impl fmt::Debug for AccessSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessSecret(secret)")
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(secret)")
    }
}

impl fmt::Debug for AeadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AeadKey(secret)")
    }
}

impl fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKeys(secret)")
    }
}

/// Returns the first bytes of HMAC-SHA256.
fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; MAC] {
    let mut hmac =
        <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(key).expect("a key has any length");
    for part in parts {
        hmac.update(part);
    }
    let digest = hmac.finalize().into_bytes();
    std::array::from_fn(|at| digest[at])
}

/// Compares in constant time.
pub(crate) fn is_equal(one: &[u8; MAC], other: &[u8; MAC]) -> bool {
    u128::from_be_bytes(*one) ^ u128::from_be_bytes(*other) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_not_print_themselves() {
        let secret = TrackSecret::new([0x42; 32]);
        let access = secret.access();
        let key = secret.packet_key(&[1; 16], 2, 3);
        let session = access.session(&[[4; 16]; 2]);
        let hop = access.hop(&[5; 16], 6);
        let seed = Seed::new([7; 32]);
        let printed = format!("{secret:?} {access:?} {seed:?} {key:?} {session:?} {hop:?}");
        let expected = "TrackSecret(secret) AccessSecret(secret) Seed(secret) AeadKey(secret) \
                        SessionKeys(secret) Hop { number: 6, key: Key(secret) }";
        assert_eq!(printed, expected);
    }

    #[test]
    fn what_is_sealed_is_opened_and_no_bit_of_it_can_be_changed() {
        let key = TrackSecret::new([1; 32]).packet_key(&[2; 16], 3, 4);
        let mut sealed = b"payload".to_vec();
        key.seal([5; 12], b"clear", &mut sealed);
        assert_eq!(
            key.open([5; 12], b"clear", &sealed).as_deref(),
            Ok(&b"payload"[..])
        );
        for bit in 0..sealed.len() * 8 {
            let mut forged = sealed.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                key.open([5; 12], b"clear", &forged),
                Err(Forged),
                "bit {bit}"
            );
        }
        assert_eq!(key.open([6; 12], b"clear", &sealed), Err(Forged));
        assert_eq!(key.open([5; 12], b"other", &sealed), Err(Forged));
        assert_eq!(key.open([5; 12], b"clear", &sealed[..15]), Err(Forged));
    }

    #[test]
    fn each_direction_of_a_session_has_its_own_key() {
        let keys = TrackSecret::new([1; 32])
            .access()
            .session(&[[2; 16], [3; 16]]);
        let mut sealed = b"payload".to_vec();
        keys.from_viewer.seal([0; 12], b"", &mut sealed);
        assert!(keys.from_viewer.open([0; 12], b"", &sealed).is_ok());
        assert!(keys.from_sender.open([0; 12], b"", &sealed).is_err());
    }
}
