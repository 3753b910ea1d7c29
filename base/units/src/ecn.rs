/// The ECN field of an IP header (RFC 3168; RFC 9331 for ECT(1)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Ecn {
    /// Not ECN-capable.
    #[default]
    NotEct,
    /// ECT(1): the sender responds to marks as L4S requires.
    Ect1,
    /// ECT(0): the sender responds to a mark as to a loss.
    Ect0,
    /// Congestion experienced.
    Ce,
}

impl Ecn {
    /// Returns the field in the lowest two bits of the ToS or traffic class octet.
    pub const fn from_octet(octet: u8) -> Ecn {
        match octet & 0b11 {
            0b00 => Ecn::NotEct,
            0b01 => Ecn::Ect1,
            0b10 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }

    /// Returns the two bits of the field.
    pub const fn bits(self) -> u8 {
        match self {
            Ecn::NotEct => 0b00,
            Ecn::Ect1 => 0b01,
            Ecn::Ect0 => 0b10,
            Ecn::Ce => 0b11,
        }
    }

    /// Returns whether a queue may mark the packet instead of dropping it.
    pub const fn is_capable(self) -> bool {
        !matches!(self, Ecn::NotEct)
    }

    /// Returns whether a dual queue classifies the packet as L4S (RFC 9331, section 5.1).
    pub const fn is_l4s(self) -> bool {
        matches!(self, Ecn::Ect1 | Ecn::Ce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_the_lowest_two_bits() {
        for octet in 0..=u8::MAX {
            assert_eq!(Ecn::from_octet(octet).bits(), octet & 0b11);
        }
        assert_eq!(Ecn::from_octet(0xb9), Ecn::Ect1);
        let l4s = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce].map(Ecn::is_l4s);
        assert_eq!(l4s, [false, true, false, true]);
    }
}
