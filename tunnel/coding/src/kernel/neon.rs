#![allow(unsafe_code, reason = "loads and stores of vectors")]

use super::Kernel;
use super::vector::{define_combine, define_parts};
use crate::field::PRODUCTS;
use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;

const BYTES: usize = 16;

type Vector = uint8x16_t;

#[derive(Clone, Copy)]
struct Factor {
    low: uint8x16_t,
    high: uint8x16_t,
}

pub(super) fn detect() -> Option<Kernel> {
    is_aarch64_feature_detected!("neon").then_some(Kernel {
        name: "neon",
        combine,
    })
}

define_combine!("neon");
define_parts!("neon");

#[inline]
#[target_feature(enable = "neon")]
fn factor(coefficient: u8) -> Factor {
    let products = &PRODUCTS[usize::from(coefficient)];
    Factor {
        low: load(&products.low),
        high: load(&products.high),
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn add_product(sum: Vector, factor: Factor, vector: Vector) -> Vector {
    let low = vqtbl1q_u8(factor.low, vandq_u8(vector, vdupq_n_u8(0x0f)));
    let high = vqtbl1q_u8(factor.high, vshrq_n_u8::<4>(vector));
    veorq_u8(sum, veorq_u8(low, high))
}

#[inline]
#[target_feature(enable = "neon")]
fn zero() -> Vector {
    vdupq_n_u8(0)
}

#[inline]
#[target_feature(enable = "neon")]
fn load(bytes: &[u8; BYTES]) -> Vector {
    // SAFETY: the array has the length of the vector, and the load requires no alignment.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn store(bytes: &mut [u8; BYTES], vector: Vector) {
    // SAFETY: the array has the length of the vector, and the store requires no alignment.
    unsafe { vst1q_u8(bytes.as_mut_ptr(), vector) }
}
