//! Derives keys and further secrets from a shared one by HKDF-SHA256 (RFC 5869).

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

/// Returns `N` bytes, at most 8,160, that are derived from a secret for the purpose that `info` names.
pub fn expand<const N: usize>(
    secret: &[u8; 32],
    salt: &[u8],
    info: &[&[u8]],
) -> Zeroizing<[u8; N]> {
    let mut bytes = Zeroizing::new([0; N]);
    Hkdf::<Sha256>::new(Some(salt), secret)
        .expand_multi_info(info, &mut bytes[..])
        .expect("less than 255 blocks");
    bytes
}

/// Returns the access secret of a broadcast, which relays have, from the secret that its publishers and viewers have. The
/// other way it cannot be computed.
pub fn access(broadcast: &[u8; 32]) -> Zeroizing<[u8; 32]> {
    expand(broadcast, &[], &[b"hawser access 1"])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by `hmac` and `hashlib` of Python.
    #[test]
    fn the_access_secret_is_as_other_programs_compute_it() {
        let secret = std::array::from_fn(|at| at as u8 + 1);
        assert_eq!(
            hex::encode(*access(&secret)),
            "4a20f0f4e1659e5b415b07cee29b2edda1dba6b81c70a7433a423c70c19ec212"
        );
    }
}
