"""The plugin dynamicresources: resource claims of the devices API (DRA), here called device claims."""
