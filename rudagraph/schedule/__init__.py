"""Graph -> Plan: order, layouts, buffers and launches; pure data, nothing decided at run time."""
