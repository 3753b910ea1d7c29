//! The client of the controller's REST interface, for agents, operators and simulated nodes.
