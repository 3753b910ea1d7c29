//! Sockets, network namespaces, packet rings and media files.
