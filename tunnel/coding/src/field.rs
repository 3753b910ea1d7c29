//! Arithmetic in GF(2^8) with the polynomial x^8 + x^4 + x^3 + x + 1, the one of the x86
//! instruction `GF2P8MULB`.

/// The polynomial. Bit i is the coefficient of x^i.
pub const POLYNOMIAL: u16 = 0x11b;

/// The products of a coefficient with all values of a half byte. The product with any byte is the
/// sum of two of them.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(crate) struct Products {
    /// The products with 0x00 to 0x0f.
    pub(crate) low: [u8; 16],
    /// The products with 0x00, 0x10, 0x20 to 0xf0.
    pub(crate) high: [u8; 16],
}

/// The tables of products, indexed by coefficient.
pub(crate) static PRODUCTS: [Products; 256] = products();

static INVERSES: [u8; 256] = inverses();

/// Returns the product of `a` and `b`.
pub fn multiply(a: u8, b: u8) -> u8 {
    PRODUCTS[usize::from(a)].with(b)
}

/// Returns the multiplicative inverse of `a`.
///
/// # Panics
/// If `a` is 0, which has no inverse.
pub fn inverse(a: u8) -> u8 {
    assert_ne!(a, 0, "0 has no inverse");
    INVERSES[usize::from(a)]
}

impl Products {
    pub(crate) fn with(&self, b: u8) -> u8 {
        self.low[usize::from(b & 15)] ^ self.high[usize::from(b >> 4)]
    }
}

/// Returns the product by definition: multiplies the polynomials and takes the remainder.
const fn multiply_by_definition(a: u8, b: u8) -> u8 {
    let mut product = 0;
    let mut bit = 8;
    while bit > 0 {
        bit -= 1;
        product <<= 1;
        if product & 0x100 != 0 {
            product ^= POLYNOMIAL;
        }
        if b >> bit & 1 != 0 {
            product ^= a as u16;
        }
    }
    product as u8
}

const fn products() -> [Products; 256] {
    let mut table = [Products {
        low: [0; 16],
        high: [0; 16],
    }; 256];
    let mut a = 0;
    while a < 256 {
        let mut b = 0;
        while b < 16 {
            table[a].low[b] = multiply_by_definition(a as u8, b as u8);
            table[a].high[b] = multiply_by_definition(a as u8, (b as u8) << 4);
            b += 1;
        }
        a += 1;
    }
    table
}

/// Computes inverses as a^254, because a^255 is 1 for all a except 0.
const fn inverses() -> [u8; 256] {
    let mut table = [0; 256];
    let mut a = 0;
    while a < 256 {
        let mut power = 1;
        let mut n = 0;
        while n < 254 {
            power = multiply_by_definition(power, a as u8);
            n += 1;
        }
        table[a] = power;
        a += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_is_that_of_the_standard() {
        // FIPS 197, section 4.2.
        assert_eq!(multiply(0x57, 0x83), 0xc1);
        assert_eq!(multiply(0x57, 0x13), 0xfe);
    }

    #[test]
    fn the_tables_are_the_definition() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(
                    multiply(a, b),
                    multiply_by_definition(a, b),
                    "{a} times {b}"
                );
            }
        }
    }

    #[test]
    fn a_number_times_its_inverse_is_one() {
        for a in 1..=255 {
            assert_eq!(multiply(a, inverse(a)), 1, "{a}");
        }
    }
}
