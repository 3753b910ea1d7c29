use hawser_kernel::link::AttachError;
use hawser_kernel::load::LoadError;
use hawser_kernel::program::RunError;
use hawser_kernel::table::TableError;

/// The reason that a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A program was rejected.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A table could not be read or written.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A program was not attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The measured program could not be put in place.
    #[error("cannot replace the program at the egress: {0}")]
    Update(std::io::Error),
    /// The program did not run.
    #[error(transparent)]
    Run(#[from] RunError),
}
