"""From an agent event to the exact JSON that readers get: coalescing and the envelope. No I/O."""
