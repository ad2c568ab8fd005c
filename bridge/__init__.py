"""The bridge: Pulsar clients on one side, brokers on the other, dispatch of delayed entries between."""
