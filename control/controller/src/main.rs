//! The program `hawser-controller`.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

fn main() -> ExitCode {
    hawser_service::main("hawser-controller", |args| hawser_controller::run(&args))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_well_formed() {
        hawser_service::command::<hawser_controller::Args>("hawser-controller").debug_assert();
    }
}
