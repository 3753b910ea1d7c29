use super::masked::{BYTES, Vector, load, load_part, store, store_part, zero};
use crate::field::PRODUCTS;
use crate::kernel::vector::define_combine;
#[cfg(target_arch = "x86")]
use std::arch::x86::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
struct Factor {
    low: __m512i,
    high: __m512i,
}

define_combine!("avx512f,avx512bw");

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn factor(coefficient: u8) -> Factor {
    let products = &PRODUCTS[usize::from(coefficient)];
    Factor {
        low: four_times(&products.low),
        high: four_times(&products.high),
    }
}

/// Copies a table into all quarters of a vector, because each quarter is shuffled separately.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn four_times(table: &[u8; 16]) -> __m512i {
    // SAFETY: the array has the length of the loaded vector, and the load requires no alignment.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(table.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn add_product(sum: Vector, factor: Factor, vector: Vector) -> Vector {
    let mask = _mm512_set1_epi8(0x0f);
    let low = _mm512_shuffle_epi8(factor.low, _mm512_and_si512(vector, mask));
    let high = _mm512_shuffle_epi8(
        factor.high,
        _mm512_and_si512(_mm512_srli_epi16::<4>(vector), mask),
    );
    _mm512_xor_si512(sum, _mm512_xor_si512(low, high))
}
