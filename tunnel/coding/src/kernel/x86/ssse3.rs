use crate::field::PRODUCTS;
use crate::kernel::vector::{define_combine, define_parts};
#[cfg(target_arch = "x86")]
use std::arch::x86::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

const BYTES: usize = 16;

type Vector = __m128i;

#[derive(Clone, Copy)]
struct Factor {
    low: __m128i,
    high: __m128i,
}

define_combine!("ssse3");
define_parts!("ssse3");

#[inline]
#[target_feature(enable = "ssse3")]
fn factor(coefficient: u8) -> Factor {
    let products = &PRODUCTS[usize::from(coefficient)];
    Factor {
        low: load(&products.low),
        high: load(&products.high),
    }
}

#[inline]
#[target_feature(enable = "ssse3")]
fn add_product(sum: Vector, factor: Factor, vector: Vector) -> Vector {
    let mask = _mm_set1_epi8(0x0f);
    let low = _mm_shuffle_epi8(factor.low, _mm_and_si128(vector, mask));
    let high = _mm_shuffle_epi8(
        factor.high,
        _mm_and_si128(_mm_srli_epi16::<4>(vector), mask),
    );
    _mm_xor_si128(sum, _mm_xor_si128(low, high))
}

#[inline]
#[target_feature(enable = "ssse3")]
fn zero() -> Vector {
    _mm_setzero_si128()
}

#[inline]
#[target_feature(enable = "ssse3")]
fn load(bytes: &[u8; BYTES]) -> Vector {
    // SAFETY: the array has the length of the vector, and the load requires no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "ssse3")]
fn store(bytes: &mut [u8; BYTES], vector: Vector) {
    // SAFETY: the array has the length of the vector, and the store requires no alignment.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), vector) }
}
