//! Sums of products over GF(2^8), by the widest instructions that the processor has.
//!
//! All kernels compute the same; [`Kernel::scalar`] is the reference. What the rest of the crate uses is chosen once, when
//! it is first needed.

#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64"))]
mod vector;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod x86;

use std::fmt;
use std::iter;
use std::sync::LazyLock;

/// One way to compute sums of products. There is none that the processor at hand cannot run.
#[derive(Clone, Copy)]
pub struct Kernel {
    name: &'static str,
    combine: Combine,
}

/// Adds to what the sum starts from each coefficient times its source, and writes the sum to the first slice. The processor
/// has to have the instructions.
type Combine = unsafe fn(&mut [u8], &[u8], &[&[u8]], Start);

/// What a sum starts from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Zero,
    Destination,
}

static BEST: LazyLock<Kernel> =
    LazyLock::new(|| Kernel::available().pop().expect("the scalar one"));

impl Kernel {
    /// Those that this processor can run, the fastest last.
    pub fn available() -> Vec<Kernel> {
        let kernels = iter::once(Kernel::scalar());
        #[cfg(target_arch = "aarch64")]
        let kernels = kernels.chain(neon::detect());
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        let kernels = kernels.chain(x86::detect());
        kernels.collect()
    }

    /// The fastest.
    pub fn best() -> Kernel {
        *BEST
    }

    /// The one without special instructions.
    pub const fn scalar() -> Kernel {
        Kernel {
            name: "scalar",
            combine: scalar::combine,
        }
    }

    /// The name of its instructions, such as `avx2`.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// See [`dot`].
    pub fn dot(self, destination: &mut [u8], coefficients: &[u8], sources: &[&[u8]]) {
        self.combine(destination, coefficients, sources, Start::Zero);
    }

    /// See [`dot_add`].
    pub fn dot_add(self, destination: &mut [u8], coefficients: &[u8], sources: &[&[u8]]) {
        self.combine(destination, coefficients, sources, Start::Destination);
    }

    /// See [`mul_add`].
    pub fn mul_add(self, destination: &mut [u8], coefficient: u8, source: &[u8]) {
        self.combine(destination, &[coefficient], &[source], Start::Destination);
    }

    #[allow(
        unsafe_code,
        reason = "the call of a function for which the processor has to have the instructions"
    )]
    fn combine(self, destination: &mut [u8], coefficients: &[u8], sources: &[&[u8]], start: Start) {
        assert_eq!(
            coefficients.len(),
            sources.len(),
            "a coefficient for each source"
        );
        // SAFETY: kernels other than the scalar one come from `available` alone, which asks the processor first.
        unsafe { (self.combine)(destination, coefficients, sources, start) }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Sets `destination` to the sum of each of `coefficients` times the source at the same place. A source counts as if it
/// went on with zeros; what of it is beyond the destination is ignored.
///
/// # Panics
/// When there are not as many coefficients as sources.
pub fn dot(destination: &mut [u8], coefficients: &[u8], sources: &[&[u8]]) {
    Kernel::best().dot(destination, coefficients, sources);
}

/// Adds to `destination` what [`dot`] would set it to.
///
/// # Panics
/// When there are not as many coefficients as sources.
pub fn dot_add(destination: &mut [u8], coefficients: &[u8], sources: &[&[u8]]) {
    Kernel::best().dot_add(destination, coefficients, sources);
}

/// Adds `coefficient` times `source` to `destination`, as far as both go.
pub fn mul_add(destination: &mut [u8], coefficient: u8, source: &[u8]) {
    Kernel::best().mul_add(destination, coefficient, source);
}
