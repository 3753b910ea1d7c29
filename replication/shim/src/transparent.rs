//! The paper's own form of replication: no header is added, and the packet's ToS byte carries the
//! path of a copy.
//!
//! The code point is `1ppp11` with the path index in `ppp`, from the pool of code points for local
//! use (RFC 2474, section 6). The ECN bits are left unchanged.

use hawser_units::PathId;
use hawser_wire::ip::ECN_MASK;

/// Returns the ToS byte or traffic class of a copy on `path`, where `tos` is that of the packet
/// itself.
pub fn tos(path: PathId, tos: u8) -> u8 {
    0x8c | u8::from(path) << 4 | tos & ECN_MASK
}

/// Returns the path of a copy with this ToS byte, or `None` if the packet is not a copy.
pub fn path(tos: u8) -> Option<PathId> {
    if tos & 0x8c != 0x8c {
        return None;
    }
    PathId::try_from(tos >> 4 & 0x7).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_a_code_of_its_own_and_ecn_survives() {
        for code in PathId::all() {
            for ecn in 0..4 {
                assert_eq!(path(tos(code, 0xb8 | ecn)), Some(code));
                assert_eq!(tos(code, 0xb8 | ecn) & ECN_MASK, ecn);
            }
        }
        assert_eq!(tos(PathId::try_from(0).unwrap(), 0), 0x8c);
        assert_eq!(tos(PathId::try_from(7).unwrap(), 0), 0xfc);
    }

    #[test]
    fn eight_code_points_are_taken() {
        let codes = (0..=u8::MAX).filter(|tos| path(*tos).is_some()).count();
        assert_eq!(codes, 8 * 4);
        assert_eq!(path(0xb8), None);
    }
}
