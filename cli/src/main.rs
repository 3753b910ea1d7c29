//! The program `hawser`.

use std::process::ExitCode;

fn main() -> ExitCode {
    hawser::main()
}
