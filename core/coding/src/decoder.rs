use crate::cells::{Cells, MAX_SPARE, OVERHEAD};
use crate::equation::{Equation, MAX_SPAN};
use crate::window::Window;
use crate::{Counts, LENGTH_BYTES, MAX_PACKET_BYTES, MAX_RANGE, Refused, code};
use hawser_units::ByteSize;
use std::collections::VecDeque;

/// Equations at most, so that one frame cannot cost more than as many eliminations.
const MAX_EQUATIONS: usize = 256;

/// Packets at most that were determined and nobody polled.
const MAX_DETERMINED: usize = 4 * MAX_EQUATIONS;

/// Numbers of packets are less, as those of QUIC.
const IDS: u64 = 1 << 62;

/// What a decoder may remember.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Packets from the oldest to the newest that are remembered.
    pub window_packets: usize,
    /// The longest packet, bytes, at most [`MAX_PACKET_BYTES`].
    pub packet_bytes: usize,
    /// For packets and equations. A packet takes its own room or, if it is longer than half of the longest, that one's, and 48
    /// bytes; an equation always takes the latter. When it is used up, the oldest packets are forgotten.
    pub memory: ByteSize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            window_packets: 8192,
            packet_bytes: 1500,
            memory: ByteSize(8 << 20),
        }
    }
}

impl Config {
    /// What [`Decoder::memory`] does not exceed, whatever comes in: the memory for packets and equations, room for a few more
    /// that is kept to be used again, and tables that may have grown to twice what they hold. 9.1 MB at the default.
    pub fn most_memory(&self) -> ByteSize {
        let room = self.room() + MAX_SPARE * (LENGTH_BYTES + self.packet_bytes);
        let window = 2 * self.window_packets * size_of::<Option<Vec<u8>>>();
        let equations = 2 * MAX_EQUATIONS * (size_of::<Equation>() + MAX_SPAN);
        let determined = 2 * (MAX_DETERMINED + MAX_EQUATIONS) * size_of::<(u64, Vec<u8>)>();
        let spare = 2 * MAX_SPARE * size_of::<Vec<u8>>();
        ByteSize((room + window + equations + determined + spare) as u64)
    }

    /// Bytes for packets and equations.
    fn room(&self) -> usize {
        self.memory.0.try_into().unwrap_or(usize::MAX)
    }
}

/// Finds lost packets from coded ones, each as soon as it is determined.
///
/// It keeps the equations in reduced row echelon form: the first packet of an equation is in no other one. Then a packet is
/// determined exactly when an equation has it alone.
#[derive(Debug)]
pub struct Decoder {
    config: Config,
    /// The symbols of the packets that it remembers, as far as they are known.
    window: Window,
    /// In the order of their first packets, which are unknown packets of the window.
    equations: Vec<Equation>,
    determined: VecDeque<(u64, Vec<u8>)>,
    /// Their bytes, with what each costs besides.
    determined_bytes: usize,
    cells: Cells,
    counts: Counts,
}

impl Decoder {
    /// A decoder that knows nothing yet.
    ///
    /// # Panics
    /// When the configuration allows no packet at all, or longer ones than [`MAX_PACKET_BYTES`].
    pub fn new(config: Config) -> Self {
        assert!(
            config.packet_bytes <= MAX_PACKET_BYTES,
            "packets of at most {MAX_PACKET_BYTES} bytes"
        );
        assert!(config.window_packets > 0, "a window of at least one packet");
        let cells = Cells::new(&config);
        Decoder {
            config,
            window: Window::default(),
            equations: Vec::new(),
            determined: VecDeque::new(),
            determined_bytes: 0,
            cells,
            counts: Counts::default(),
        }
    }

    /// Takes a packet that came as itself. It is copied, because later coded packets may be about it. [`Decoder::poll_packet`]
    /// does not return it.
    ///
    /// # Errors
    /// When it is not new: it is [`Refused::Known`], or so old that nobody can say ([`Refused::Forgotten`]); or when it is
    /// not a packet.
    pub fn handle_original(&mut self, id: u64, packet: &[u8]) -> Result<(), Refused> {
        let taken = self.take_original(id, packet);
        self.counts.count(taken)
    }

    /// Takes a coded packet: the sum of `count` packets from `start` on, with the coefficients of `seed`.
    ///
    /// # Errors
    /// When it is not what a sender can have sent, or too late to be of use. A coded packet that says nothing new is no error.
    pub fn handle_coded(
        &mut self,
        start: u64,
        count: usize,
        seed: u64,
        symbol: &[u8],
    ) -> Result<(), Refused> {
        let taken = self.take_coded(start, count, seed, symbol);
        self.counts.count(taken)
    }

    /// The next packet that coded packets have determined, with its number. In the order in which they became determined.
    pub fn poll_packet(&mut self) -> Option<(u64, Vec<u8>)> {
        let (id, packet) = self.determined.pop_front()?;
        self.determined_bytes -= packet.len() + OVERHEAD;
        Some((id, packet))
    }

    /// Gives up all packets before `id`.
    pub fn forget_before(&mut self, id: u64) {
        let cells = &mut self.cells;
        self.window.forget_before(id, |symbol| cells.give(symbol));
        let first = self.window.first();
        let abandoned = self
            .equations
            .partition_point(|equation| equation.first < first);
        for equation in self.equations.drain(..abandoned) {
            self.counts.abandoned += 1;
            self.cells.give(equation.symbol);
        }
        if self.window.is_empty() {
            self.equations.shrink_to(0);
            self.determined.shrink_to(0);
            self.cells.shrink();
        }
        self.window.shrink();
    }

    /// What has become of what came in.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What packets and equations take of the memory that they may have. It is always known.
    pub fn kept(&self) -> ByteSize {
        ByteSize((self.cells.used() + self.determined_bytes) as u64)
    }

    /// What the decoder holds in memory, counted one by one.
    pub fn memory(&self) -> ByteSize {
        let symbols = self.window.symbols().chain(self.cells.spare());
        let packets = self.determined.iter().map(|(_, packet)| packet);
        let equations = self
            .equations
            .iter()
            .flat_map(|equation| [&equation.symbol, &equation.coefficients]);
        let contents: usize = symbols
            .chain(packets)
            .chain(equations)
            .map(Vec::capacity)
            .sum();
        let tables = self.window.table_bytes()
            + self.equations.capacity() * size_of::<Equation>()
            + self.determined.capacity() * size_of::<(u64, Vec<u8>)>()
            + self.cells.spare().capacity() * size_of::<Vec<u8>>();
        ByteSize((contents + tables) as u64)
    }

    fn take_original(&mut self, id: u64, packet: &[u8]) -> Result<(), Refused> {
        if packet.len() > self.config.packet_bytes {
            return Err(Refused::Length);
        }
        self.reach(id, 1)?;
        if self.known(id).is_some() {
            return Err(Refused::Known);
        }
        let mut symbol = self.cells.take(LENGTH_BYTES + packet.len());
        symbol.extend_from_slice(&code::length_of(packet));
        symbol.extend_from_slice(packet);
        self.counts.originals += 1;
        self.learn(id, symbol);
        self.keep_to_memory();
        Ok(())
    }

    fn take_coded(
        &mut self,
        start: u64,
        count: usize,
        seed: u64,
        symbol: &[u8],
    ) -> Result<(), Refused> {
        if !(LENGTH_BYTES..=LENGTH_BYTES + self.config.packet_bytes).contains(&symbol.len()) {
            return Err(Refused::Length);
        }
        if !(1..=MAX_RANGE).contains(&count) {
            return Err(Refused::Range);
        }
        self.reach(start, count as u64)?;
        let range = start..start + count as u64;
        if range.clone().all(|id| self.known(id).is_some()) {
            self.counts.coded += 1;
            self.counts.redundant += 1;
            return Ok(());
        }
        let mut own = self.cells.take_largest();
        own.extend_from_slice(symbol);
        let mut equation = Equation::coded(start, count, seed, own);
        if let Err(refused) = self.reduce(&mut equation) {
            self.cells.give(equation.symbol);
            return Err(refused);
        }
        self.counts.coded += 1;
        self.enter(equation);
        self.keep_to_memory();
        Ok(())
    }

    /// Moves the window on so that it has `count` packets from `start`.
    fn reach(&mut self, start: u64, count: u64) -> Result<(), Refused> {
        let end = start
            .checked_add(count)
            .filter(|end| *end <= IDS)
            .ok_or(Refused::Range)?;
        let first = self
            .window
            .first()
            .max(end.saturating_sub(self.config.window_packets as u64));
        if start < first {
            return Err(Refused::Forgotten);
        }
        self.forget_before(first);
        self.window.extend_to(end);
        Ok(())
    }

    /// The symbol of packet `id` of the window.
    fn known(&self, id: u64) -> Option<&[u8]> {
        self.window.get(id)
    }

    /// Takes out of `equation` what is known, and the first packets of the other equations.
    fn reduce(&self, equation: &mut Equation) -> Result<(), Refused> {
        let mut factors = [0; MAX_RANGE];
        let mut symbols = [&[][..]; MAX_RANGE];
        let range = equation.first..equation.first + equation.coefficients.len() as u64;
        let mut terms = 0;
        for id in range {
            let (factor, symbol) = if let Some(symbol) = self.known(id) {
                (equation.substitute(id), symbol)
            } else if let Ok(at) = self
                .equations
                .binary_search_by_key(&id, |other| other.first)
            {
                let other = &self.equations[at];
                (
                    equation.eliminate(other).map_err(|_| Refused::TooLong)?,
                    &other.symbol[..],
                )
            } else {
                continue;
            };
            (factors[terms], symbols[terms]) = (factor, symbol);
            terms += 1;
        }
        equation.add(&factors[..terms], &symbols[..terms]);
        if equation.coefficients.is_empty() && equation.symbol.iter().any(|byte| *byte != 0) {
            return Err(Refused::Contradiction);
        }
        Ok(())
    }

    /// Takes an equation without packets that are known or the first of another equation.
    fn enter(&mut self, equation: Equation) {
        if equation.coefficients.is_empty() {
            self.counts.redundant += 1;
            self.cells.give(equation.symbol);
            return;
        }
        if self.equations.len() == MAX_EQUATIONS {
            self.counts.abandoned += 1;
            self.cells.give(self.equations.remove(0).symbol);
        }
        let at = self
            .equations
            .partition_point(|other| other.first < equation.first);
        let too_long = self
            .equations
            .extract_if(..at, |other| match other.eliminate(&equation) {
                Ok(0) => false,
                Ok(factor) => {
                    other.add(&[factor], &[&equation.symbol]);
                    false
                }
                Err(_) => true,
            });
        for abandoned in too_long {
            self.counts.abandoned += 1;
            self.cells.give(abandoned.symbol);
        }
        let at = self
            .equations
            .partition_point(|other| other.first < equation.first);
        self.equations.insert(at, equation);
        self.settle();
    }

    /// Makes packets of the equations that are solved.
    fn settle(&mut self) {
        for equation in self
            .equations
            .extract_if(.., |equation| equation.is_solved())
        {
            let mut symbol = self.cells.take(equation.symbol.len());
            equation.solve(&mut symbol);
            self.cells.give(equation.symbol);
            let Some(packet) = code::packet_of(&symbol) else {
                self.counts.malformed += 1;
                self.cells.give(symbol);
                continue;
            };
            self.counts.determined += 1;
            self.determined_bytes += packet.len() + OVERHEAD;
            self.determined.push_back((equation.first, packet.to_vec()));
            self.window.set(equation.first, symbol);
        }
    }

    /// Notes what packet `id` of the window is, and what follows from that.
    fn learn(&mut self, id: u64, symbol: Vec<u8>) {
        let at = self
            .equations
            .partition_point(|equation| equation.first < id);
        for equation in &mut self.equations[..at] {
            let factor = equation.substitute(id);
            if factor != 0 {
                equation.add(&[factor], &[&symbol]);
            }
        }
        if self
            .equations
            .get(at)
            .is_some_and(|equation| equation.first == id)
        {
            let mut equation = self.equations.remove(at);
            let factor = equation.substitute(id);
            equation.add(&[factor], &[&symbol]);
            self.enter(equation);
        } else {
            self.settle();
        }
        self.window.set(id, symbol);
    }

    /// Forgets the oldest until what is left fits.
    fn keep_to_memory(&mut self) {
        while self.cells.used() + self.determined_bytes > self.config.room() {
            let equation = self.equations.first().map(|equation| equation.first);
            match self.window.first_known().into_iter().chain(equation).min() {
                Some(oldest) => self.forget_before(oldest + 1),
                None => self.give_up_determined(),
            }
        }
        while self.determined.len() > MAX_DETERMINED {
            self.give_up_determined();
        }
    }

    fn give_up_determined(&mut self) {
        self.counts.unclaimed += u64::from(self.poll_packet().is_some());
    }
}
