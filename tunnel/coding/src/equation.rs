use crate::field::{inverse, multiply};
use crate::kernel::Kernel;
use crate::{MAX_RANGE, fill_coefficients};

/// The maximum number of packets from the first to the last of an equation. Overlapping ranges make
/// equations longer than each of the ranges.
pub(crate) const MAX_SPAN: usize = 4 * MAX_RANGE;

/// A sum of unknown packets, each multiplied by its coefficient, and the symbol that the sum
/// equals.
///
/// Coefficients and symbol are updated in two steps: [`Equation::substitute`] and
/// [`Equation::eliminate`] change the coefficients and return the factor for [`Equation::add`],
/// which updates the symbol. One sum thereby serves several changes.
#[derive(Debug)]
pub(crate) struct Equation {
    /// The number of the first packet. After each [`Equation::add`], its coefficient and that of
    /// the last packet are not zero.
    pub(crate) first: u64,
    pub(crate) coefficients: Vec<u8>,
    pub(crate) symbol: Vec<u8>,
}

/// The error that an equation would be longer than [`MAX_SPAN`].
#[derive(Debug)]
pub(crate) struct TooLong;

impl Equation {
    /// Creates the equation of a coded packet.
    pub(crate) fn coded(first: u64, count: usize, seed: u64, symbol: Vec<u8>) -> Self {
        let mut coefficients = vec![0; count];
        fill_coefficients(seed, &mut coefficients);
        Equation {
            first,
            coefficients,
            symbol,
        }
    }

    /// Removes packet `id` and returns the factor by which its symbol has to be added.
    pub(crate) fn substitute(&mut self, id: u64) -> u8 {
        self.position(id).map_or(0, |position| {
            std::mem::take(&mut self.coefficients[position])
        })
    }

    /// Removes the first packet of `other`, which may add the other packets of `other`, and returns
    /// the factor by which the symbol of `other` has to be added.
    pub(crate) fn eliminate(&mut self, other: &Equation, kernel: Kernel) -> Result<u8, TooLong> {
        let Some(position) = self.position(other.first) else {
            return Ok(0);
        };
        let end = position + other.coefficients.len();
        if end > MAX_SPAN {
            return Err(TooLong);
        }
        if end > self.coefficients.len() {
            self.coefficients.resize(end, 0);
        }
        let factor = multiply(self.coefficients[position], inverse(other.coefficients[0]));
        kernel.mul_add(
            &mut self.coefficients[position..end],
            factor,
            &other.coefficients,
        );
        Ok(factor)
    }

    /// Adds each of `symbols`, multiplied by its factor, to the symbol.
    pub(crate) fn add(&mut self, factors: &[u8], symbols: &[&[u8]], kernel: Kernel) {
        let longest = symbols.iter().map(|symbol| symbol.len()).max().unwrap_or(0);
        if longest > self.symbol.len() {
            self.symbol.resize(longest, 0);
        }
        kernel.dot_add(&mut self.symbol, factors, symbols);
        self.trim();
    }

    /// Returns whether a single packet is left, which the equation therefore determines.
    pub(crate) fn is_solved(&self) -> bool {
        self.coefficients.len() == 1
    }

    /// Writes the symbol of the only packet to `symbol`, which has to be empty.
    pub(crate) fn solve(&self, symbol: &mut Vec<u8>, kernel: Kernel) {
        symbol.resize(self.symbol.len(), 0);
        let factor = inverse(self.coefficients[0]);
        kernel.dot(symbol, &[factor], &[&self.symbol]);
    }

    fn position(&self, id: u64) -> Option<usize> {
        let position = usize::try_from(id.checked_sub(self.first)?).ok()?;
        (position < self.coefficients.len()).then_some(position)
    }

    /// Removes zero coefficients at both ends.
    fn trim(&mut self) {
        let zeros = self
            .coefficients
            .iter()
            .take_while(|coefficient| **coefficient == 0)
            .count();
        self.coefficients.drain(..zeros);
        self.first += zeros as u64;
        while self
            .coefficients
            .pop_if(|coefficient| *coefficient == 0)
            .is_some()
        {}
    }
}
